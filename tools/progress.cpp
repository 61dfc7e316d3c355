#include "progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kvpolicy {

progress_bar::progress_bar(std::string what, std::size_t total)
    : what_(std::move(what)), total_(total), shown_(isatty(STDERR_FILENO) != 0) {
  show(0);
}

progress_bar::~progress_bar() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
}

void progress_bar::show(std::size_t done) {
  if (!shown_) return;
  constexpr std::size_t width = 30;
  std::size_t const filled = total_ == 0 ? width : std::min(width, done * width / total_);
  double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  double const rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  double const left = rate > 0 ? static_cast<double>(total_ - std::min(done, total_)) / rate : 0;
  std::fprintf(stderr, "\r\033[K%s [%s%s] %zu/%zu, %.0f/s, %.0f s left", what_.c_str(), std::string(filled, '#').c_str(),
               std::string(width - filled, '.').c_str(), done, total_, rate, left);
  std::fflush(stderr);
}

}  // namespace kvpolicy
