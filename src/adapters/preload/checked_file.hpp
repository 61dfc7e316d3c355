// Files that are written whole, and read as they were written or not at all.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvpolicy::preload {

inline std::size_t hash_of(std::span<std::byte const> bytes) noexcept {
  return std::hash<std::string_view>{}({reinterpret_cast<char const*>(bytes.data()), bytes.size()});
}

/// `what` says which bytes these are. Throws error, and leaves a file that is there as it is, where it can't be written.
void write_checked(std::string const& path, std::string_view what, std::span<std::byte const> bytes);
/// None where there is no such file, it is of something else or another version, or damaged.
std::optional<std::vector<std::byte>> read_checked(std::string const& path, std::string_view what);

}  // namespace kvpolicy::preload
