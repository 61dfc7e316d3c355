// Primitive fill: whole units by falling score until a token budget is spent.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "kvpolicy/primitive/top_k.hpp"

namespace kvpolicy {

/// Takes units by falling score until they hold `budget` tokens. Ties go to the smaller index, NaN ranks last. The last unit is
/// cut to the rest of the budget. Empty units are never taken. Reads the units four times.
/// @param scores  `[units]`
/// @param sizes  `[units]`, tokens
/// @param budget  tokens
/// @param taken  `[units]`: how many of each unit's first tokens are taken
inline void fill(std::span<float const> scores, std::span<std::int32_t const> sizes, std::int64_t budget,
                 std::span<std::int32_t> taken) noexcept {
  // `taken` holds the rank keys until the threshold is known.
  for (std::size_t u = 0; u < scores.size(); ++u) taken[u] = static_cast<std::int32_t>(sortable_key(scores[u]));
  auto const key_of = [&](std::size_t u) { return static_cast<std::uint32_t>(taken[u]); };
  std::uint32_t threshold = 0;  // largest key such that units of this key and above hold the budget; a byte at a time
  std::int64_t left = budget;   // less the tokens of units above the threshold
  for (std::uint32_t shift = 32; shift > 0 && budget > 0;) {
    std::uint32_t const above = shift == 32 ? 0 : ~std::uint32_t{0} << shift;
    shift -= 8;
    std::array<std::int64_t, 256> tokens{};
    for (std::size_t u = 0; u < scores.size(); ++u) {
      if ((key_of(u) & above) == threshold) tokens[(key_of(u) >> shift) & 255] += sizes[u];
    }
    std::uint32_t byte = 255;
    for (; byte > 0 && tokens[byte] < left; --byte) left -= tokens[byte];
    threshold |= byte << shift;
  }
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
