// Where the library's own lines go: standard error, or the file that KVPOLICY_LOG names.
#pragma once

#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

namespace kvpolicy::preload {

/// A line of the adapter's, which speaks to who writes programs on libllama, as their users set the same: by options.
std::string in_options(std::string_view line);

/// Thread-safe. Lines are written whole, and behind what the file has.
class log {
 public:
  /// Throws invalid_value where the file can't be written. Empty: standard error; "none": nowhere.
  explicit log(std::string const& path);
  log(log const&) = delete;
  log& operator=(log const&) = delete;

  /// Says a line in_options().
  void say(std::string_view said);
  /// What was said before is not said again.
  void say_once(std::string const& line);

 private:
  std::FILE* to_;  ///< null: nowhere
  std::mutex saying_;
  std::unordered_set<std::string> said_;
};

}  // namespace kvpolicy::preload
