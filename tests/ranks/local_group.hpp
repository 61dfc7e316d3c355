// Ranks that are threads of one process, and the communicator between them.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kvpolicy/interop/ranks_deadline.hpp"

namespace kvpolicy_test::ranks {

using namespace kvpolicy;

/// Where local communicators meet. Sums are made in the order of ranks.
class local_group {
 public:
  explicit local_group(int size) : parts_(static_cast<std::size_t>(size)) {}
  int size() const { return static_cast<int>(parts_.size()); }

 private:
  friend class local_communicator;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<float>> parts_;
  std::vector<float> total_;
  int arrived_ = 0;
  int round_ = 0;
};

class local_communicator {
 public:
  local_communicator(local_group& group, int rank, std::chrono::milliseconds deadline)
      : group_(&group), wait_(rank, group.size(), deadline) {}

  int rank() const { return wait_.rank(); }
  int size() const { return wait_.size(); }

  void sum(std::span<float> values) {
    wait_.begin();
    std::unique_lock lock(group_->mutex_);
    group_->parts_[static_cast<std::size_t>(rank())].assign(values.begin(), values.end());
    int const round = group_->round_;
    if (++group_->arrived_ == size()) {
      std::vector<float>& total = group_->total_;
      total.assign(values.size(), 0);
      for (std::vector<float> const& part : group_->parts_) {
        if (part.size() != total.size()) wait_.fail("sums other numbers than another rank");
        for (std::size_t i = 0; i < total.size(); ++i) total[i] += part[i];
      }
      group_->arrived_ = 0;
      ++group_->round_;
      group_->changed_.notify_all();
    } else if (!group_->changed_.wait_until(lock, wait_.until(), [&] { return group_->round_ != round; })) {
      wait_.expire();
    }
    std::copy(group_->total_.begin(), group_->total_.end(), values.begin());
  }

 private:
  local_group* group_;
  ranks_deadline wait_;
};

static_assert(communicator<local_communicator>);

/// Calls work(rank's communicator) on a thread for each rank; what each threw, or "".
template <class Work>
std::vector<std::string> on_ranks(int size, std::chrono::milliseconds deadline, Work work) {
  local_group group(size);
  std::vector<std::string> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        local_communicator all(group, rank, deadline);
        work(all);
      } catch (std::exception const& e) {
        thrown[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

}  // namespace kvpolicy_test::ranks
