// A thread that carries out gets in the order in which they began, and the status of each. Tiers with such a thread share it.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "kvpolicy/error.hpp"
#include "kvpolicy/tiers/tier.hpp"

namespace kvpolicy::tiers {

/// Carries out gets on one thread. Its destructor finishes the gets that have begun.
/// @tparam Job  what a get needs to know; movable
template <class Job>
class get_worker {
 public:
  /// Starts the thread. Neither callback may throw.
  /// @param copy  `status copy(job)` carries out a get, without the lock
  /// @param settle  `settle(job)` follows it, with the lock held
  template <class Copy, class Settle>
  get_worker(Copy copy, Settle settle) : thread_([this, copy, settle] { work(copy, settle); }) {}
  get_worker(get_worker const&) = delete;
  get_worker& operator=(get_worker const&) = delete;
  ~get_worker() {
    {
      std::scoped_lock const lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  /// The lock that guards the jobs, and what a tier shares with them.
  std::mutex& mutex() noexcept { return mutex_; }

  /// Begins a get. Call it with the lock held. An exception leaves everything as it was.
  /// @param job  the get
  /// @param hold  `hold(job)` is called when nothing can throw any more
  /// @return the get's ticket
  template <class Hold>
  ticket begin(Job job, Hold hold) {
    auto const place = states_.emplace(last_ + 1, status::pending).first;
    try {
      waiting_.push_back({last_ + 1, std::move(job)});
    } catch (...) {
      states_.erase(place);
      throw;
    }
    hold(std::as_const(waiting_.back().job));
    wake_.notify_all();
    return ++last_;
  }
  /// Records a get that needs no thread. Call it with the lock held.
  /// @param how  how it ended
  /// @return the get's ticket
  ticket ended(status how) {
    states_.emplace(last_ + 1, how);
    return ++last_;
  }
  /// Visits the gets that have not ended, oldest first. Call it with the lock held.
  /// @param visit  is called as `visit(job)`
  template <class Visit>
  void each_waiting(Visit visit) const {
    for (entry const& e : waiting_) visit(e.job);
  }

  status poll(ticket id) {
    std::scoped_lock const lock(mutex_);
    return tell(id);
  }
  status wait(ticket id, clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    ended_.wait_until(lock, deadline, [&] { return state_of(id) != status::pending; });
    return tell(id);
  }

 private:
  struct entry {
    ticket id;
    Job job;
  };

  status state_of(ticket id) const {
    auto const found = states_.find(id);
    KVPOLICY_EXPECTS(found != states_.end(), "ticket " + std::to_string(id) + " is not this tier's, or was reported already");
    return found->second;
  }
  status tell(ticket id) {
    status const result = state_of(id);
    if (result != status::pending) states_.erase(id);
    return result;
  }

  template <class Copy, class Settle>
  void work(Copy const& copy, Settle const& settle) {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      // The job stays in the queue while it is copied, so that ending it allocates nothing.
      entry& next = waiting_.front();
      lock.unlock();
      status const result = copy(next.job);
      lock.lock();
      states_.find(next.id)->second = result;
      settle(next.job);
      waiting_.pop_front();
      ended_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable ended_;
  std::deque<entry> waiting_;
  std::map<ticket, status> states_;
  ticket last_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

/// Counts the blocks of a tier without slots. A block that a waiting get names is in flight.
/// @tparam Job  has `blocks`, each with its `read`
/// @param worker  the tier's worker
/// @param index  the stored blocks by key
/// @param capacity  the most blocks
/// @return free, resident and in-flight blocks
template <class Job, class Index>
usage usage_of(get_worker<Job>& worker, Index const& index, std::int64_t capacity) {
  std::set<block_key> named;
  {
    std::scoped_lock const lock(worker.mutex());
    worker.each_waiting([&](Job const& job) {
      for (auto const& block : job.blocks) named.insert(block.read.key);
    });
  }
  std::int64_t const held = std::ranges::count_if(named, [&](block_key const& key) { return index.contains(key); });
  std::int64_t const stored = std::ssize(index);
  return {capacity - stored, stored - held, held};
}

}  // namespace kvpolicy::tiers
