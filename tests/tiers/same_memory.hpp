// A tier to compare with: ordinary memory, no latency: a put copies the bytes in, a get copies them out at once.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/error.hpp"
#include "kvpolicy/tiers/tier.hpp"

namespace kvpolicy_test {

namespace tiers = kvpolicy::tiers;

/// What the other tiers are compared with: nothing is ever in flight.
class same_memory {
 public:
  same_memory(std::int64_t block_bytes, std::int64_t capacity) : bytes_(block_bytes), capacity_(capacity) {
    KVPOLICY_EXPECTS(block_bytes > 0 && capacity >= 0, "a tier of " + std::to_string(capacity) + " blocks of " +
                                                           std::to_string(block_bytes) +
                                                           " bytes; neither can be negative, nor a block empty");
  }

  std::int64_t block_bytes() const noexcept { return bytes_; }
  std::int64_t capacity() const noexcept { return capacity_; }

  bool put(std::span<tiers::block_write const> writes) {
    std::int64_t fresh = 0;
    for (tiers::block_write const& w : writes) fresh += blocks_.contains(w.key) ? 0 : 1;
    if (std::ssize(blocks_) + fresh > capacity_) return false;
    std::vector<std::vector<std::byte>> bytes;  // everything that can fail first
    std::map<tiers::block_key, std::vector<std::byte>> added;
    for (tiers::block_write const& w : writes) {
      std::vector<std::byte> copy(w.from, w.from + bytes_);
      if (blocks_.contains(w.key)) bytes.push_back(std::move(copy));
      else added[w.key] = std::move(copy);
    }
    auto next = bytes.begin();
    for (tiers::block_write const& w : writes) {
      if (auto const found = blocks_.find(w.key); found != blocks_.end()) found->second = std::move(*next++);
    }
    blocks_.merge(added);
    return true;
  }

  tiers::ticket get(std::span<tiers::block_read const> reads) {
    bool complete = true;
    for (tiers::block_read const& r : reads) complete = complete && blocks_.contains(r.key);
    ended_.emplace(last_ + 1, complete ? tiers::status::done : tiers::status::missed);
    for (tiers::block_read const& r : reads) {
      if (complete) std::memcpy(r.to, blocks_.find(r.key)->second.data(), static_cast<std::size_t>(bytes_));
    }
    return ++last_;
  }

  tiers::status poll(tiers::ticket id) {
    auto const found = ended_.find(id);
    KVPOLICY_EXPECTS(found != ended_.end(), "ticket " + std::to_string(id) + " is not this tier's, or was told already");
    tiers::status const result = found->second;
    ended_.erase(found);
    return result;
  }
  tiers::status wait(tiers::ticket id, tiers::clock::time_point) { return poll(id); }
  void drop(std::span<tiers::block_key const> keys) {
    for (tiers::block_key const& key : keys) blocks_.erase(key);
  }
  tiers::usage occupied() const noexcept { return {capacity_ - std::ssize(blocks_), std::ssize(blocks_), 0}; }

 private:
  std::int64_t bytes_;
  std::int64_t capacity_;
  tiers::ticket last_ = 0;
  std::map<tiers::block_key, std::vector<std::byte>> blocks_;
  std::map<tiers::ticket, tiers::status> ended_;
};

static_assert(kvpolicy::tiers::tier_like<same_memory>);

}  // namespace kvpolicy_test
