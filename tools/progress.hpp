// How far work has come, on stderr: a bar on a terminal, elsewhere a line now and then.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>

namespace kvpolicy {

/// On a terminal it draws at once; elsewhere a line after 3 seconds, and then one each 10.
class progress_bar {
 public:
  progress_bar(std::string what, std::size_t total);
  ~progress_bar();
  progress_bar(progress_bar const&) = delete;
  progress_bar& operator=(progress_bar const&) = delete;

  /// `done` of the total.
  void show(std::size_t done);

 private:
  std::string text() const;
  void draw() const;
  void tell_now_and_then();

  std::string what_;
  std::size_t total_;
  bool terminal_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::condition_variable end_;
  std::size_t done_ = 0;
  bool ended_ = false;
  std::thread teller_;  ///< where there is no terminal
};

}  // namespace kvpolicy
