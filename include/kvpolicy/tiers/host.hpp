// Tier: a bounded arena of host memory, with a worker thread that copies.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/tiers/get_worker.hpp"
#include "kvpolicy/tiers/slots.hpp"

namespace kvpolicy::tiers {

/// Keeps blocks in a bounded arena of host memory. Models tier_like.
/// The arena is allocated at once, but takes memory only where blocks were put. A get finds its blocks and holds them when it
/// begins, so the copy itself can't fail.
class host {
 public:
  /// Allocates the arena and starts the worker thread.
  /// @param block_bytes  bytes of a block
  /// @param capacity  the most blocks
  /// @param at_once  bytes up to which a get() that is waited for copies by itself; waking the worker takes longer
  /// @throws invalid_value for invalid sizes
  host(std::int64_t block_bytes, std::int64_t capacity, std::int64_t at_once = 256 << 10)
      : bytes_(checked(block_bytes, capacity)),
        at_once_(at_once),
        slots_(capacity),
        arena_(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(block_bytes * capacity))),
        worker_([this](copies const& c) { return copy_all(c); },
                [this](copies const& c) {
                  for (copy const& one : c) slots_.release(one.from);
                }) {}

  std::int64_t block_bytes() const noexcept { return bytes_; }
  std::int64_t capacity() const noexcept { return slots_.capacity(); }

  bool put(std::span<block_write const> writes) {
    std::scoped_lock const lock(worker_.mutex());
    if (std::ssize(writes) > slots_.free()) return false;  // replaced blocks are freed after the new ones are in
    std::size_t announced = 0;
    try {
      for (; announced < writes.size(); ++announced) slots_.announce(writes[announced].key);
    } catch (std::bad_alloc const&) {  // as if nothing had been put
      for (std::size_t i = 0; i < announced; ++i) slots_.withdraw(writes[i].key);
      return false;
    }
    for (block_write const& w : writes) {
      slot_table::slot const s = slots_.take();
      std::memcpy(address(s), w.from, static_cast<std::size_t>(bytes_));
      slots_.publish(w.key, s);
    }
    return true;
  }

  ticket get(std::span<block_read const> reads, bool waits = true) {
    std::scoped_lock const lock(worker_.mutex());
    copies made;
    made.reserve(reads.size());
    for (block_read const& r : reads) {
      slot_table::slot const s = slots_.find(r.key);
      if (s == slot_table::none) return worker_.ended(status::missed);
      made.push_back({s, r.to});
    }
    if (waits && std::ssize(made) * bytes_ <= at_once_) {
      ticket const id = worker_.ended(status::done);
      copy_all(made);
      return id;
    }
    return worker_.begin(std::move(made), [this](copies const& c) {
      for (copy const& one : c) slots_.hold(one.from);
    });
  }
  status poll(ticket id) { return worker_.poll(id); }
  status wait(ticket id, clock::time_point deadline) { return worker_.wait(id, deadline); }

  void drop(std::span<block_key const> keys) {
    std::scoped_lock const lock(worker_.mutex());
    for (block_key const& key : keys) slots_.drop(key);
  }
  usage occupied() {
    std::scoped_lock const lock(worker_.mutex());
    return slots_.occupied();
  }

 private:
  struct copy {
    slot_table::slot from;
    std::byte* to;
  };
  using copies = std::vector<copy>;

  static std::int64_t checked(std::int64_t bytes, std::int64_t capacity) {
    KVPOLICY_EXPECTS(bytes > 0 && capacity >= 0 && capacity <= INT64_MAX / bytes,
                     "a tier of " + std::to_string(capacity) + " blocks of " + std::to_string(bytes) +
                         " bytes; neither can be negative, nor a block empty");
    return bytes;
  }
  std::byte* address(slot_table::slot s) noexcept { return arena_.get() + s * bytes_; }

  status copy_all(copies const& all) noexcept {
    for (copy const& c : all) std::memcpy(c.to, address(c.from), static_cast<std::size_t>(bytes_));
    return status::done;
  }

  std::int64_t bytes_;
  std::int64_t at_once_;
  slot_table slots_;
  std::unique_ptr<std::byte[]> arena_;
  get_worker<copies> worker_;
};

static_assert(tier_like<host>);

}  // namespace kvpolicy::tiers
