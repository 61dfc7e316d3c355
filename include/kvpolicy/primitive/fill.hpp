// Primitive fill: whole units by falling score until a token budget is spent.
#pragma once

#include <algorithm>
#include <span>

#include "kvpolicy/primitive/top_k.hpp"

namespace kvpolicy {

/// Takes units by falling score (ties to the smaller index, NaN last) until they hold `budget` tokens; the last one is cut to
/// what is left. taken[u] = how many of the unit's first tokens are taken: `[units]`, from `[units]` scores and sizes.
/// Empty units are never taken. O(32 units).
inline void fill(std::span<float const> scores, std::span<std::int32_t const> sizes, std::int64_t budget,
                 std::span<std::int32_t> taken) noexcept {
  // `taken` holds the rank keys until the threshold is known.
  for (std::size_t u = 0; u < scores.size(); ++u) taken[u] = static_cast<std::int32_t>(sortable_key(scores[u]));
  auto const key_of = [&](std::size_t u) { return static_cast<std::uint32_t>(taken[u]); };
  auto const tokens_from = [&](std::uint32_t threshold) {
    std::int64_t tokens = 0;
    for (std::size_t u = 0; u < scores.size(); ++u) tokens += key_of(u) >= threshold ? sizes[u] : 0;
    return tokens;
  };
  std::uint32_t threshold = 0;  // the largest that still has the budget
  for (std::uint32_t bit = 1u << 31; bit != 0 && budget > 0; bit >>= 1) {
    if (tokens_from(threshold | bit) >= budget) threshold |= bit;
  }
  std::int64_t left = budget - (threshold == UINT32_MAX ? 0 : tokens_from(threshold + 1));
  for (std::size_t u = 0; u < scores.size(); ++u) {
    std::uint32_t const key = key_of(u);
    taken[u] = 0;
    if (budget <= 0 || key < threshold) continue;
    if (key > threshold) {
      taken[u] = sizes[u];
    } else {
      taken[u] = static_cast<std::int32_t>(std::min<std::int64_t>(left, sizes[u]));
      left -= taken[u];
    }
  }
}

}  // namespace kvpolicy
