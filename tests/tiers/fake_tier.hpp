// A tier that, by seed, reorders, delays and fails what it is asked for, and stops the program where its rules are broken.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/random_cache.hpp"
#include "kvpolicy/tiers/slots.hpp"

namespace kvpolicy_test {

struct fake_options {
  std::uint64_t seed = 1;
  std::int64_t most_polls = 4;          ///< a get can end once it has been polled this often, or earlier
  std::int64_t puts_fail_one_in = 0;    ///< 0: never
  std::int64_t gets_missed_one_in = 0;  ///< 0: only where a block is not there
  bool never = false;                   ///< no get ends
};

/// Nothing is copied before a poll or a wait, of any ticket. Deterministic; no thread.
class fake_tier {
 public:
  fake_tier(std::int64_t block_bytes, std::int64_t capacity, fake_options options = {})
      : bytes_(block_bytes),
        options_(options),
        random_(options.seed),
        slots_(capacity),
        arena_(static_cast<std::size_t>(block_bytes * capacity)),
        holds_(static_cast<std::size_t>(capacity)) {}
  fake_tier(fake_tier const&) = delete;
  fake_tier& operator=(fake_tier const&) = delete;

  std::int64_t block_bytes() const noexcept { return bytes_; }
  std::int64_t capacity() const noexcept { return slots_.capacity(); }
  fake_options& options() noexcept { return options_; }

  bool put(std::span<kvpolicy::tiers::block_write const> writes) {
    if (std::ssize(writes) > slots_.free() || fails(options_.puts_fail_one_in)) return false;
    for (auto const& w : writes) slots_.announce(w.key);
    for (auto const& w : writes) {
      auto const s = slots_.take();
      if (s == kvpolicy::tiers::slot_table::none) broken("a free slot is not there");
      if (holds_[static_cast<std::size_t>(s)] != 0) broken("a slot was handed out while a get holds it");
      std::memcpy(address(s), w.from, size());
      slots_.publish(w.key, s);
    }
    return true;
  }

  kvpolicy::tiers::ticket get(std::span<kvpolicy::tiers::block_read const> reads) {
    job made{.id = ++last_, .due = now_ + random_.between(0, options_.most_polls), .copies = {}};
    bool complete = !fails(options_.gets_missed_one_in);
    for (auto const& r : reads) {
      auto const s = slots_.find(r.key);
      complete = complete && s != kvpolicy::tiers::slot_table::none;
      for (job const& j : jobs_) {
        for (copy const& c : j.copies) {
          if (c.to < r.to + bytes_ && r.to < c.to + bytes_) broken("two gets have one destination");
        }
      }
      made.copies.push_back({s, r.to, digest(r.to), 0});
    }
    made.done = complete;
    for (copy& c : made.copies) {
      if (c.from == kvpolicy::tiers::slot_table::none) continue;
      c.source = digest(address(c.from));
      slots_.hold(c.from);
      ++holds_[static_cast<std::size_t>(c.from)];
    }
    jobs_.push_back(std::move(made));
    return last_;
  }

  kvpolicy::tiers::status poll(kvpolicy::tiers::ticket id) {
    tick();
    return tell(id);
  }
  kvpolicy::tiers::status wait(kvpolicy::tiers::ticket id, kvpolicy::tiers::clock::time_point deadline) {
    if (options_.never) {
      auto const result = tell(id);
      if (result == kvpolicy::tiers::status::pending) std::this_thread::sleep_until(deadline);
      return result;
    }
    while (true) {
      tick();
      if (auto const result = tell(id); result != kvpolicy::tiers::status::pending) return result;
    }
  }
  /// Lets time pass, with nobody asking.
  void run() { tick(); }
  void drop(std::span<kvpolicy::tiers::block_key const> keys) {
    for (auto const& key : keys) slots_.drop(key);
  }
  kvpolicy::tiers::usage occupied() {
    auto const held = static_cast<std::int64_t>(std::ranges::count_if(holds_, [](std::int32_t n) { return n > 0; }));
    auto const use = slots_.occupied();
    if (use.in_flight != held) broken("the table counts other slots in flight than those that gets hold");
    return use;
  }

 private:
  struct copy {
    kvpolicy::tiers::slot_table::slot from;
    std::byte* to;
    std::uint64_t before;  ///< digest of the destination when the get began
    std::uint64_t source;  ///< digest of the slot when the get began
  };
  struct job {
    kvpolicy::tiers::ticket id = 0;
    std::int64_t due = 0;
    bool done = false;
    std::vector<copy> copies;
  };

  [[noreturn]] static void broken(char const* what) {
    std::fprintf(stderr, "fake_tier: %s\n", what);
    std::abort();
  }
  std::size_t size() const noexcept { return static_cast<std::size_t>(bytes_); }
  std::byte* address(kvpolicy::tiers::slot_table::slot s) noexcept { return arena_.data() + s * bytes_; }
  bool fails(std::int64_t one_in) { return one_in > 0 && random_.one_in(one_in); }

  std::uint64_t digest(std::byte const* bytes) const noexcept {
    std::uint64_t hash = 0x9e3779b97f4a7c15u;
    for (std::int64_t i = 0; i < bytes_; i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + i, static_cast<std::size_t>(std::min<std::int64_t>(8, bytes_ - i)));
      hash = (hash ^ word) * 0xff51afd7ed558ccdu;
      hash ^= hash >> 29;
    }
    return hash;
  }

  /// Some of the gets that are due end, in any order; none stays for long.
  void tick() {
    ++now_;
    if (options_.never) return;
    for (std::int64_t tries = random_.between(1, 3); tries > 0 && !jobs_.empty(); --tries) {
      auto const chosen = static_cast<std::size_t>(random_.between(0, std::ssize(jobs_) - 1));
      if (jobs_[chosen].due <= now_) finish(chosen);
    }
  }

  void finish(std::size_t chosen) {
    std::swap(jobs_[chosen], jobs_.back());
    job const& j = jobs_.back();
    for (copy const& c : j.copies) {
      if (digest(c.to) != c.before) broken("a destination was touched while a get was in flight");
      if (c.from == kvpolicy::tiers::slot_table::none) continue;
      if (digest(address(c.from)) != c.source) broken("a slot was written while a get held it");
    }
    for (copy const& c : j.copies) {
      if (j.done) std::memcpy(c.to, address(c.from), size());
    }
    for (copy const& c : j.copies) {
      if (c.from == kvpolicy::tiers::slot_table::none) continue;
      if (--holds_[static_cast<std::size_t>(c.from)] < 0) broken("a slot was released too often");
      slots_.release(c.from);
    }
    ended_.push_back({j.id, j.done ? kvpolicy::tiers::status::done : kvpolicy::tiers::status::missed});
    jobs_.pop_back();
  }

  kvpolicy::tiers::status tell(kvpolicy::tiers::ticket id) {
    for (auto& told : ended_) {
      if (told.first != id) continue;
      auto const result = told.second;
      std::swap(told, ended_.back());
      ended_.pop_back();
      return result;
    }
    KVPOLICY_EXPECTS(std::ranges::any_of(jobs_, [&](job const& j) { return j.id == id; }),
                     "ticket " + std::to_string(id) + " is not this tier's, or was told already");
    return kvpolicy::tiers::status::pending;
  }

  std::int64_t bytes_;
  fake_options options_;
  random_source random_;
  kvpolicy::tiers::slot_table slots_;
  std::vector<std::byte> arena_;
  std::vector<std::int32_t> holds_;
  std::vector<job> jobs_;
  std::vector<std::pair<kvpolicy::tiers::ticket, kvpolicy::tiers::status>> ended_;
  kvpolicy::tiers::ticket last_ = 0;
  std::int64_t now_ = 0;
};

static_assert(kvpolicy::tiers::tier_like<fake_tier>);

}  // namespace kvpolicy_test
