// How far a sequence's rows reach in memory.
#pragma once

#include <algorithm>
#include <concepts>
#include <utility>

#include "kvpolicy/view.hpp"

namespace kvpolicy::gpu {

/// Returns which tokens of a sequence some of its rows are: with indices, from the smallest to the largest.
/// @param from  the rows
/// @param first,last  which rows: [first, last)
/// @return the first token, and the one behind the last
template <class Memory>
std::pair<std::int64_t, std::int64_t> tokens_between(basic_rows<Memory> const& from, std::int64_t first, std::int64_t last) {
  if (from.indices == nullptr || first >= last) return {first, last};
  std::int64_t least = INT64_MAX;
  std::int64_t most = 0;
  for (std::int64_t h = 0; h < (from.index_stride == 0 ? 1 : from.heads); ++h) {
    std::int32_t const* const indices = from.indices + h * from.index_stride;
    auto const [low, high] = std::minmax_element(indices + first, indices + last);
    least = std::min<std::int64_t>(least, *low);
    most = std::max<std::int64_t>(most, *high + 1);
  }
  return {least, most};
}

/// Returns how far the first rows of a layer reach: what is copied of host rows, and what the GPU emulator lets a kernel read.
/// @param from  the rows
/// @param tokens  how many first rows
/// @return bytes from the base to the end of the last row; INT64_MAX for rows on the device, which are not looked at
template <class Memory>
std::int64_t extent_of(basic_rows<Memory> const& from, std::int64_t tokens) {
  if constexpr (std::same_as<Memory, host_memory>) {
    std::int64_t const there = tokens_between(from, 0, tokens).second;
    if (there == 0) return 0;
    std::int64_t const row = (from.heads - 1) * from.head_stride + from.offset_of(from.head_dim - 1) + size_of(from.type);
    if (from.pages == nullptr) return row + (there - 1) * from.token_stride;
    std::int64_t most = 0;
    for (std::int64_t t = 0; t < there; ++t) {
      most = std::max(most, from.pages[t / from.page_size] * from.page_stride + t % from.page_size * from.token_stride);
    }
    return most + row;
  } else {
    return INT64_MAX;
  }
}

}  // namespace kvpolicy::gpu
