// A file that appears whole or not at all.
#pragma once

#include <fstream>
#include <string>

namespace kvpolicy {

/// Written under a fresh name beside its place, and put there by commit(), through links. What is not committed is removed,
/// after signals that end the process too. Devices and pipes are written directly.
class output_file {
 public:
  /// Throws invalid_value where the file can't be made.
  explicit output_file(std::string path);
  ~output_file();
  output_file(output_file const&) = delete;
  output_file& operator=(output_file const&) = delete;

  std::ostream& stream() noexcept { return file_; }
  /// Throws error where something could not be written (a full disk); nothing is left then.
  void commit();

  /// SIGINT, SIGTERM, SIGHUP and SIGPIPE remove what is not committed, and end the process as ever.
  static void remove_on_signals();
  /// Whether both name one file, through links or not yet there.
  static bool same(std::string const& one, std::string const& other);

 private:
  std::string path_;     ///< as it was given
  std::string target_;   ///< what it names, through links
  std::string written_;  ///< the temporary's name, or empty
  std::ofstream file_;
  int slot_ = -1;  ///< of the names that signals remove
};

}  // namespace kvpolicy
