// A thread that ends gets in the order in which they began, and what is known of each. Shared by tiers that have one.
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

/// Gets that have begun when it is destroyed are ended first.
template <class Job>
class get_worker {
 public:
  /// `copy(job)` is called without the lock and says how the get ended, `settle(job)` behind it with the lock held; neither
  /// throws.
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

  /// Guards the jobs, and what a tier shares with them.
  std::mutex& mutex() noexcept { return mutex_; }

  /// With the lock held: a get begins. `hold(job)` is called when nothing can throw any more; where begin() throws, nothing
  /// changed.
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
  /// With the lock held: a get that has ended before it began.
  ticket ended(status how) {
    states_.emplace(last_ + 1, how);
    return ++last_;
  }
  /// With the lock held: visit(job) for those that have not ended, oldest first.
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
    KVPOLICY_EXPECTS(found != states_.end(), "ticket " + std::to_string(id) + " is not this tier's, or was told already");
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

/// Where blocks are stored without slots: in flight are those that a waiting get names. A job has `blocks`, each with its
/// `read`.
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
