// How far a sequence's rows reach in memory.
#pragma once

#include <algorithm>
#include <concepts>

#include "kvpolicy/view.hpp"

namespace kvpolicy::gpu {

/// Returns how many tokens of a sequence its first rows may touch: with indices, up to the largest index.
/// Rows on the device are not looked at; their page table covers all tokens.
/// @param from  the rows
/// @param tokens  how many first rows
/// @return tokens
template <class Memory>
std::int64_t tokens_behind(basic_rows<Memory> const& from, std::int64_t tokens) {
  if constexpr (std::same_as<Memory, host_memory>) {
    std::int64_t most = from.indices == nullptr ? tokens : 0;
    for (std::int64_t h = 0; from.indices != nullptr && tokens > 0 && h < (from.index_stride == 0 ? 1 : from.heads); ++h) {
      std::int32_t const* const indices = from.indices + h * from.index_stride;
      most = std::max<std::int64_t>(most, *std::max_element(indices, indices + tokens) + 1);
    }
    return most;
  } else {
    return tokens;
  }
}

/// Returns how far the first rows of a layer reach: what is copied of host rows, and what the GPU emulator lets a kernel read.
/// @param from  the rows
/// @param tokens  how many first rows
/// @return bytes from the base to the end of the last row; INT64_MAX for rows on the device, which are not looked at
template <class Memory>
std::int64_t extent_of(basic_rows<Memory> const& from, std::int64_t tokens) {
  if constexpr (std::same_as<Memory, host_memory>) {
    std::int64_t const there = tokens_behind(from, tokens);
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
