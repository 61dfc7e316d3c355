// Tier: a bounded arena of host memory, with a worker thread that copies.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvpolicy/tier/slots.hpp"

namespace kvpolicy::tier {

/// The arena is allocated at once. A get looks its blocks up and holds them when it begins, so the copy itself can't fail.
class host {
 public:
  host(std::int64_t block_bytes, std::int64_t capacity)
      : bytes_(checked(block_bytes, capacity)),
        slots_(capacity),
        arena_(static_cast<std::size_t>(block_bytes * capacity)),
        worker_([this] { work(); }) {}
  host(host const&) = delete;
  host& operator=(host const&) = delete;
  ~host() {
    {
      std::scoped_lock const lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    worker_.join();
  }

  std::int64_t block_bytes() const noexcept { return bytes_; }
  std::int64_t capacity() const noexcept { return slots_.capacity(); }

  bool put(std::span<block_write const> writes) {
    std::scoped_lock const lock(mutex_);
    if (std::ssize(writes) > slots_.free()) return false;  // replaced blocks are freed behind the new ones
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

  ticket get(std::span<block_read const> reads) {
    std::scoped_lock const lock(mutex_);
    ticket const id = ++last_;
    job made{.id = id, .copies = {}};
    made.copies.reserve(reads.size());
    for (block_read const& r : reads) {
      slot_table::slot const s = slots_.find(r.key);
      if (s == slot_table::none) {
        made.copies.clear();
        ended_[id] = status::missed;
        return id;
      }
      made.copies.push_back({s, r.to});
    }
    auto const place = ended_.emplace(id, status::pending).first;
    try {
      waiting_.push_back(std::move(made));
    } catch (...) {
      ended_.erase(place);
      throw;
    }
    for (copy const& c : waiting_.back().copies) slots_.hold(c.from);
    wake_.notify_all();
    return id;
  }

  status poll(ticket id) {
    std::scoped_lock const lock(mutex_);
    return tell(id);
  }
  status wait(ticket id, clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    ended_one_.wait_until(lock, deadline, [&] { return state_of(id) != status::pending; });
    return tell(id);
  }
  void drop(block_key const& key) {
    std::scoped_lock const lock(mutex_);
    slots_.drop(key);
  }
  usage occupied() {
    std::scoped_lock const lock(mutex_);
    return slots_.occupied();
  }

 private:
  struct copy {
    slot_table::slot from;
    std::byte* to;
  };
  struct job {
    ticket id = 0;
    std::vector<copy> copies;
  };

  static std::int64_t checked(std::int64_t bytes, std::int64_t capacity) {
    KVPOLICY_EXPECTS(bytes > 0 && capacity >= 0 && capacity <= INT64_MAX / bytes,
                     "a tier of " + std::to_string(capacity) + " blocks of " + std::to_string(bytes) +
                         " bytes; neither can be negative, nor a block empty");
    return bytes;
  }
  std::byte* address(slot_table::slot s) noexcept { return arena_.data() + s * bytes_; }

  status state_of(ticket id) const {
    auto const found = ended_.find(id);
    KVPOLICY_EXPECTS(found != ended_.end(), "ticket " + std::to_string(id) + " is not this tier's, or was told already");
    return found->second;
  }
  status tell(ticket id) {
    status const result = state_of(id);
    if (result != status::pending) ended_.erase(id);
    return result;
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      // The job stays in the queue while it is copied, so that ending it allocates nothing.
      job& next = waiting_.front();
      lock.unlock();
      for (copy const& c : next.copies) std::memcpy(c.to, address(c.from), static_cast<std::size_t>(bytes_));
      lock.lock();
      ended_.find(next.id)->second = status::done;
      for (copy const& c : next.copies) slots_.release(c.from);
      waiting_.pop_front();
      ended_one_.notify_all();
    }
  }

  std::int64_t bytes_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable ended_one_;
  slot_table slots_;
  std::vector<std::byte> arena_;
  std::deque<job> waiting_;
  std::map<ticket, status> ended_;
  ticket last_ = 0;
  bool stopping_ = false;
  std::thread worker_;
};

static_assert(tier_like<host>);

}  // namespace kvpolicy::tier
