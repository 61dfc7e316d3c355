#include "output_file.hpp"

#include <kvpolicy/error.hpp>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace kvpolicy {

output_file::output_file(std::string path) : path_(std::move(path)) {
  std::error_code error;
  auto const status = std::filesystem::status(path_, error);
  bool const direct = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
  if (std::filesystem::is_directory(status)) throw invalid_value("'" + path_ + "' is a folder, it can't be written");
  written_ = direct ? path_ : path_ + ".part";
  file_.open(written_, std::ios::binary | std::ios::trunc);
  if (!file_) throw invalid_value("'" + path_ + "' can't be written: " + std::strerror(errno));
}

output_file::~output_file() {
  if (committed_ || written_ == path_) return;
  file_.close();
  std::error_code error;
  std::filesystem::remove(written_, error);
}

void output_file::commit() {
  file_.flush();
  bool const written = file_.good();
  int const reason = errno;
  file_.close();
  if (!written || file_.fail()) throw error("'" + path_ + "' could not be written whole: " + std::strerror(reason));
  if (written_ != path_) std::filesystem::rename(written_, path_);
  committed_ = true;
}

}  // namespace kvpolicy
