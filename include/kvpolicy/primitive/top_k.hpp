// Primitive top_k, and the ranking order of the whole library.
#pragma once

#include <bit>
#include <span>

#include "kvpolicy/types.hpp"

namespace kvpolicy {

/// Maps a score to an unsigned key of the same order. -0 equals +0. Every NaN maps to 0 and so ranks below -inf. All executors
/// rank by this key, then by smaller index.
/// @param score  any float
/// @return the key
constexpr std::uint32_t sortable_key(float score) noexcept {
  if (score != score) return 0;
  std::uint32_t const bits = std::bit_cast<std::uint32_t>(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// Finds the indices of the min(k[row], columns) highest scores of each row. The result is exact. Ties go to the smaller index,
/// NaN ranks last. Callers leave out what must be kept whatever its score.
/// @param scores  `[rows, columns]`
/// @param k  `[rows]`
/// @param indices  `[rows, >= largest k]`, ascending in each row
/// @param exec  the executor
template <class Exec>
void top_k(table<float const> scores, std::span<std::int32_t const> k, table<std::int32_t> indices, Exec& exec) {
  exec.top_k(scores, k, indices);
}

}  // namespace kvpolicy
