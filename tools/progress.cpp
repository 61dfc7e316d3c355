#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kvpolicy {

progress_bar::progress_bar(std::string what, std::size_t total)
    : what_(std::move(what)), total_(total), terminal_(isatty(STDERR_FILENO) != 0) {
  if (terminal_) draw();
  else teller_ = std::thread([this] { tell_now_and_then(); });
}

progress_bar::~progress_bar() {
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K");
    return;
  }
  {
    std::scoped_lock const lock(mutex_);
    ended_ = true;
  }
  end_.notify_all();
  teller_.join();
}

void progress_bar::show(std::size_t done) {
  std::scoped_lock const lock(mutex_);
  done_ = done;
  if (terminal_) draw();
}

std::string progress_bar::text() const {
  double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  double const rate = seconds > 0 ? static_cast<double>(done_) / seconds : 0;
  std::string text = std::to_string(done_) + "/" + std::to_string(total_) + ", ";
  if (rate == 0) return text + "what is left is not known yet";
  double const left = static_cast<double>(total_ - std::min(done_, total_)) / rate;
  return text + std::to_string(static_cast<long long>(rate + .5)) + "/s, " + std::to_string(static_cast<long long>(left + .5)) +
         " s left";
}

void progress_bar::draw() const {
  constexpr std::size_t width = 30;
  std::size_t const filled = total_ == 0 ? width : std::min(width, done_ * width / total_);
  std::fprintf(stderr, "\r\033[K%s [%s%s] %s", what_.c_str(), std::string(filled, '#').c_str(),
               std::string(width - filled, '.').c_str(), text().c_str());
  std::fflush(stderr);
}

void progress_bar::tell_now_and_then() {
  std::unique_lock lock(mutex_);
  auto next = start_ + std::chrono::seconds(3);
  while (!end_.wait_until(lock, next, [this] { return ended_; })) {
    std::fprintf(stderr, "%s: %s\n", what_.c_str(), text().c_str());
    next += std::chrono::seconds(10);
  }
}

}  // namespace kvpolicy
