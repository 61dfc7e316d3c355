// The wait for other ranks that all communicators share. It ends in time, and its first failure is final.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "kvpolicy/communicator.hpp"

namespace kvpolicy {

/// Limits each wait for the other ranks, and remembers the first failure.
class ranks_deadline {
 public:
  using clock = std::chrono::steady_clock;

  /// Makes a wait for one rank of a group.
  /// @param rank,size  this rank, and the number of ranks
  /// @param most  the longest wait
  /// @throws invalid_value if `most` is not above 0
  ranks_deadline(int rank, int size, std::chrono::milliseconds most) : rank_(rank), size_(size), most_(most) {
    KVPOLICY_EXPECTS(most.count() > 0,
                     "a deadline of " + std::to_string(most.count()) + " ms for the other ranks; it must be at least 1");
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  bool broken() const noexcept { return !why_.empty(); }

  /// Begins a wait.
  /// @throws ranks_error with the reason, if an earlier wait failed
  void begin() {
    if (broken()) throw ranks_error(why_);
    until_ = clock::now() + most_;
    polls_ = 0;
  }
  clock::time_point until() const noexcept { return until_; }

  /// Yields for a moment, because nothing has come yet.
  /// @throws ranks_error past the deadline
  void poll() {
    if (clock::now() >= until_) expire();
    if (++polls_ < 1000) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  /// Fails because the deadline has passed: throws ranks_error.
  [[noreturn]] void expire() {
    fail(
        "waited " + std::to_string(most_.count()) +
        " ms for the scores of the other ranks: one has ended, is stuck, or is this much behind; start the group anew, or with "
        "a longer deadline");
  }
  /// Breaks the communicator for good.
  /// @param what  the reason; this rank's number goes before it
  /// @throws ranks_error always
  [[noreturn]] void fail(std::string const& what) {
    why_ = "rank " + std::to_string(rank_) + " of " + std::to_string(size_) + " " + what;
    throw ranks_error(why_);
  }

 private:
  int rank_;
  int size_;
  std::chrono::milliseconds most_;
  clock::time_point until_{};
  int polls_ = 0;
  std::string why_;
};

}  // namespace kvpolicy
