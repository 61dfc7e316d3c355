// Primitive top_k, and the order that all selection shares.
#pragma once

#include <bit>
#include <span>

#include "kvpolicy/types.hpp"

namespace kvpolicy {

/// Maps a score to an unsigned key of the same order: larger scores have larger keys, -0 equals +0, every NaN is 0 and so
/// ranks below -inf. All executors rank by this key, then by smaller index.
constexpr std::uint32_t sortable_key(float score) noexcept {
  if (score != score) return 0;
  std::uint32_t const bits = std::bit_cast<std::uint32_t>(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// For each row of scores, the indices of its min(k[row], columns) highest: ascending, ties to the smaller index, NaN
/// last, exact. indices.row(r) has room for k[r]. What must be kept whatever its score is not offered here at all.
template <class Exec>
void top_k(table<float const> scores, std::span<std::int32_t const> k, table<std::int32_t> indices, Exec& exec) {
  exec.top_k(scores, k, indices);
}

}  // namespace kvpolicy
