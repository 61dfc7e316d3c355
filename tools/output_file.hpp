// A file that appears whole or not at all.
#pragma once

#include <fstream>
#include <string>

namespace kvpolicy {

/// Opened beside its place at once, so that a place that can't be written is known before the work; put there by commit().
/// What is not committed is removed. Devices and pipes are written directly.
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

 private:
  std::string path_;
  std::string written_;  ///< the temporary's name, or path_ itself
  std::ofstream file_;
  bool committed_ = false;
};

}  // namespace kvpolicy
