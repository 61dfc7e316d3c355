// How far a sequence's rows reach in memory.
#pragma once

#include <algorithm>
#include <concepts>

#include "kvpolicy/view.hpp"

namespace kvpolicy::gpu {

/// How many tokens of a sequence may be read where the first `tokens` of its rows are: with indices, any up to the largest of
/// them. A page table on the device is there for all.
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

/// Bytes from the base of a layer's rows to behind the last that is read: what is copied of host rows, and what the checked
/// model lets a kernel read. What is on the device is not asked.
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
