#include "log.hpp"

#include <kvpolicy/error.hpp>

#include <cerrno>
#include <cstring>

namespace kvpolicy::preload {

log::log(std::string const& path) : to_(stderr) {
  if (path.empty()) return;
  if (path == "none") {
    to_ = nullptr;
    return;
  }
  to_ = std::fopen(path.c_str(), "ae");
  if (to_ == nullptr) {
    throw invalid_value("KVPOLICY_LOG: '" + path + "' can't be written: " + std::strerror(errno) +
                        "; name a file, or none for no lines");
  }
}

void log::say(std::string_view line) {
  if (to_ == nullptr) return;
  std::lock_guard const lock(saying_);
  std::fprintf(to_, "kvpolicy: %.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(to_);
}

void log::say_once(std::string const& line) {
  {
    std::lock_guard const lock(saying_);
    if (!said_.insert(line).second) return;
  }
  say(line);
}

}  // namespace kvpolicy::preload
