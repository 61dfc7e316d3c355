// A progress bar on stderr, only where that is a terminal.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace kvpolicy {

class progress_bar {
 public:
  progress_bar(std::string what, std::size_t total);
  ~progress_bar();
  progress_bar(progress_bar const&) = delete;
  progress_bar& operator=(progress_bar const&) = delete;

  /// `done` of the total: draws the bar, the rate and the time left.
  void show(std::size_t done);

 private:
  std::string what_;
  std::size_t total_;
  bool shown_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace kvpolicy
