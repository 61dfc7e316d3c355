// A team of threads that an engine owns and lends to an executor.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "kvpolicy/error.hpp"

namespace kvpolicy {

/// Lends an engine's worker threads to an executor. The threads meet once per call of the engine: the leader (rank 0) runs
/// lead(work), every other thread runs follow(). Within `work` the leader may call for_each(count, body) any number of times.
/// All threads then share body(0) ... body(count - 1), each run once, in any order. Nothing is allocated.
///
/// A waiting thread spins at first, as engines' own barriers do, then sleeps. On a busy machine a spinning thread would keep
/// the thread that it waits for from running. The team must outlive every call of follow().
class team {
 public:
  /// Makes a team that owns no threads.
  /// @param threads  the leader and its followers
  /// @throws invalid_value if `threads` is less than 1
  explicit team(int threads) : threads_(threads) {
    KVPOLICY_EXPECTS(threads >= 1, "a team has " + std::to_string(threads) + " threads, it needs at least 1");
  }

  /// The number of threads, the leader included.
  int size() const noexcept { return threads_; }

  /// Runs `work()` on the calling thread, then releases the followers. If `work` throws, the followers are released too.
  /// @param work  calls for_each() directly, or through an executor
  /// @throws invalid_value inside another lead(), and where more than size() - 1 threads have followed
  template <class Work>
  void lead(Work&& work) {
    KVPOLICY_EXPECTS(!leading_, "lead() inside lead(); call for_each(), or the executor, there");
    struct closing {
      team& self;
      ~closing() {
        self.leading_ = false;
        self.publish(nullptr, nullptr, 0);
      }
    } const at_exit{*this};
    leading_ = true;
    KVPOLICY_EXPECTS(!crowded_.load(), "more than " + std::to_string(threads_ - 1) + " threads followed a team of " +
                                           std::to_string(threads_) + "; count the leader too");
    std::forward<Work>(work)();
  }

  /// Runs `work()` without followers. Its loops stay on the calling thread.
  /// @param work  as in lead()
  template <class Work>
  void lead_alone(Work&& work) {
    struct closing {
      bool& alone;
      ~closing() { alone = false; }
    } const at_exit{alone_};
    alone_ = true;
    std::forward<Work>(work)();
  }

  /// Takes part in the leader's loops until the leader's work is done. size() - 1 threads call it for each lead(); a further
  /// one returns at once, and from then on lead() throws. In a team of 1 every call returns at once.
  void follow() noexcept {
    if (threads_ == 1) return;
    if (inside_.fetch_add(1) + 1 >= threads_) {
      inside_.fetch_sub(1);
      crowded_.store(true);
      return;
    }
    while (true) {
      std::uint64_t const seen = left_.load(std::memory_order_acquire) / static_cast<std::uint64_t>(threads_ - 1) + 1;
      wait(epoch_, seen);
      bool const more = body_ != nullptr;
      if (more) share();
      else inside_.fetch_sub(1);
      left_.fetch_add(1);
      wake();
      // The next epoch begins only when all have left this one.
      wait(left_, seen * static_cast<std::uint64_t>(threads_ - 1));
      if (!more) return;
    }
  }

  /// Runs body(i) for i in [0, count) on all threads, and returns when all are done. Only within lead() or lead_alone().
  /// @param count  number of bodies
  /// @param body  runs on any thread of the team; must not throw
  /// @throws invalid_value outside lead() and lead_alone(), where the loop would wait for followers that do not come
  template <class Body>
  void for_each(std::int64_t count, Body&& body) {
    if (threads_ == 1 || count <= 1 || alone_) {
      for (std::int64_t i = 0; i < count; ++i) body(i);
      return;
    }
    KVPOLICY_EXPECTS(leading_, "a loop of a team of " + std::to_string(threads_) +
                                   " threads outside lead(); call the executor inside team::lead(), or lead_alone()");
    publish([](void* what, std::int64_t i) { (*static_cast<std::remove_reference_t<Body>*>(what))(i); },
            const_cast<void*>(static_cast<void const*>(std::addressof(body))), count);
  }

 private:
  using body_function = void (*)(void*, std::int64_t);

  void publish(body_function body, void* what, std::int64_t count) noexcept {
    if (threads_ == 1) return;
    body_ = body;
    what_ = what;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    std::uint64_t const epoch = epoch_.fetch_add(1) + 1;
    wake();
    if (body != nullptr) share();
    wait(left_, epoch * static_cast<std::uint64_t>(threads_ - 1));
  }

  void share() noexcept {
    for (std::int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
         i = next_.fetch_add(1, std::memory_order_relaxed)) {
      body_(what_, i);
    }
  }

  /// Returns when `counter` has reached `least`. Spins and then yields for about 100 microseconds, which is enough on an idle
  /// machine, then sleeps. std::atomic's own wait() would not do: libstdc++ keeps a table of sleepers in each shared object, so
  /// a plugin's threads would not find those of the program.
  void wait(std::atomic<std::uint64_t> const& counter, std::uint64_t least) noexcept {
    constexpr int spins = 4096;
    constexpr int yields = 256;
    for (int i = 0; i < spins + yields; ++i) {
      if (counter.load(std::memory_order_acquire) >= least) return;
      if (i >= spins) std::this_thread::yield();
    }
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    changed_.wait(lock, [&] { return counter.load() >= least; });
    sleepers_.fetch_sub(1);
  }

  /// Wakes the sleepers after a counter has changed. Either wake() sees the sleeper, or the sleeper sees the new counter: both
  /// accesses are sequentially consistent.
  void wake() noexcept {
    if (sleepers_.load() == 0) return;
    { std::lock_guard const lock(mutex_); }
    changed_.notify_all();
  }

  int threads_;
  bool alone_ = false;
  bool leading_ = false;  ///< of the leader's thread alone
  body_function body_ = nullptr;
  void* what_ = nullptr;
  std::int64_t count_ = 0;
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::uint64_t> epoch_{0};
  alignas(64) std::atomic<std::uint64_t> left_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<int> inside_{0};  ///< threads in follow()
  std::atomic<bool> crowded_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace kvpolicy
