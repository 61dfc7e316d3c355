// Up to 8 query heads against 8 rows at a time, on tensor cores.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/rows.hpp"

namespace kvpolicy::gpu {

/// Two halves in a word, the first one low; and what they leave of the values, in another.
template <element_type E>
KVPOLICY_KERNEL void split(float x, float y, std::uint32_t& high, std::uint32_t& low) {
  stored<E> const x_high = narrowed<E>(x);
  stored<E> const y_high = narrowed<E>(y);
  stored<E> const x_low = narrowed<E>(x - widened<E>(x_high));
  stored<E> const y_low = narrowed<E>(y - widened<E>(y_high));
  high = x_high | static_cast<std::uint32_t>(y_high) << 16;
  low = x_low | static_cast<std::uint32_t>(y_low) << 16;
}

/// Query heads of 32 Chunks channels, a lane's part of them. They are rows 0 to 7 of a matrix, what rounding to halves leaves
/// of them rows 8 to 15: one product has both, as from queries of 16 significant bits (bf16) or 22 (f16). Lane l has channels
/// [8 (t + 4 c), + 8) of head l / 4, t = l % 4, and reads those of row l / 4: which channel a product calls its k-th does not
/// matter, as long as both sides agree.
template <element_type E, int Chunks>
struct tensor_queries {
  std::uint32_t part[Chunks][2][4];
  float unit = 1;  ///< what products are to be multiplied by: halves hold the queries divided by it, whatever their size

  /// `channel_of(head, channel)` for heads below `real`; the others are 0. Collective.
  template <class Tile, class Channel>
  KVPOLICY_KERNEL void load(Tile const& tile, std::int32_t real, Channel channel_of) {
    auto const head = static_cast<std::int32_t>(tile.lane()) >> 2;
    auto const t = static_cast<std::int32_t>(tile.lane()) & 3;
    float channels[Chunks][8] = {};
    float size = 0;
    KVPOLICY_UNROLL
    for (int c = 0; c < Chunks; ++c) {
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (head < real) channels[c][i] = channel_of(head, 8 * (t + 4 * c) + i);
        size = fabsf(channels[c][i]) > size ? fabsf(channels[c][i]) : size;
      }
    }
    KVPOLICY_UNROLL
    for (unsigned mask = 1; mask < 4; mask *= 2) {
      float const other = tile.shfl_xor(size, mask);
      size = other > size ? other : size;
    }
    // A power of two that makes the largest channel less than 1.
    int exponent = 0;
    if (size > 0 && size < 3e38f) (void)frexpf(size, &exponent);
    unit = ldexpf(1, exponent);
    float const share = ldexpf(1, -exponent);
    KVPOLICY_UNROLL
    for (int c = 0; c < Chunks; ++c) {
      KVPOLICY_UNROLL
      for (int step = 0; step < 2; ++step) {
        float const* const four = &channels[c][4 * step];
        split<E>(four[0] * share, four[1] * share, part[c][step][0], part[c][step][1]);
        split<E>(four[2] * share, four[3] * share, part[c][step][2], part[c][step][3]);
      }
    }
  }

  /// Adds the products with 8 rows: of head l / 4 with rows 2 (l % 4) and the next, in two sums each: out[i] + out[2 + i].
  /// Collective.
  template <class Tile, class Raw>
  KVPOLICY_KERNEL void multiply(Tile const& tile, Raw const (&row)[Chunks], float (&out)[4]) const {
    KVPOLICY_UNROLL
    for (int c = 0; c < Chunks; ++c) {
      KVPOLICY_UNROLL
      for (int step = 0; step < 2; ++step) {
        std::uint32_t const four[2] = {row[c].word[0].word[2 * step], row[c].word[0].word[2 * step + 1]};
        tile.template multiply<E>(part[c][step], four, out);
      }
    }
  }
};

}  // namespace kvpolicy::gpu
