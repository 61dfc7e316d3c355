// Primitive overlap: how many indices two sets have in common.
#pragma once

#include <cstdint>
#include <span>

namespace kvpolicy {

/// Counts the indices that two lists share.
/// @param a, b  ascending, without repetition
/// @return the size of their intersection
inline std::int64_t overlap(std::span<std::int32_t const> a, std::span<std::int32_t const> b) noexcept {
  std::int64_t common = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    common += a[i] == b[j] ? 1 : 0;
    std::int32_t const left = a[i];
    std::int32_t const right = b[j];
    i += left <= right ? 1 : 0;
    j += right <= left ? 1 : 0;
  }
  return common;
}

}  // namespace kvpolicy
