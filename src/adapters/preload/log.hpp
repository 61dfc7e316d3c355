// Where the library's own lines go: standard error, or the file that KVPOLICY_LOG names.
#pragma once

#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

namespace kvpolicy::preload {

/// Thread-safe. Lines are written whole, and behind what the file has.
class log {
 public:
  /// Throws invalid_value where the file can't be written. Empty: standard error; "none": nowhere.
  explicit log(std::string const& path);
  log(log const&) = delete;
  log& operator=(log const&) = delete;

  void say(std::string_view line);
  /// What was said before is not said again.
  void say_once(std::string const& line);

 private:
  std::FILE* to_;  ///< null: nowhere
  std::mutex saying_;
  std::unordered_set<std::string> said_;
};

}  // namespace kvpolicy::preload
