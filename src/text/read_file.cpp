#include "read_file.hpp"

#include <kvpolicy/error.hpp>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvpolicy {

std::string read_file(std::string const& path) {
  std::error_code error;
  auto const status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) throw invalid_value("'" + path + "' is a folder, not a file");
  // A pipe that nobody writes to, or a device, would never end.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw invalid_value("'" + path + "' is a pipe or a device, not a file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw invalid_value("'" + path + "' can't be read: " + std::strerror(errno));
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) throw invalid_value("'" + path + "' can't be read: " + std::strerror(errno));
  return text.str();
}

}  // namespace kvpolicy
