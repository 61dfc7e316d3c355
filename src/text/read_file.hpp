// A file as one string.
#pragma once

#include <string>

namespace kvpolicy {

/// The whole file. Throws invalid_value where it can't be read, or is no file.
std::string read_file(std::string const& path);

}  // namespace kvpolicy
