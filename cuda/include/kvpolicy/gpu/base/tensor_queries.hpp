// Up to 8 query heads against 8 rows at a time, on tensor cores.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/base/rows.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// Two halves in a word, the first one low; and what they leave of the values, in another.
template <element_type E>
KVPOLICY_KERNEL void split(float x, float y, std::uint32_t& high, std::uint32_t& low) {
  high = narrowed_pair<E>(x, y);
  low = narrowed_pair<E>(x - widened<E>(static_cast<stored<E>>(high)), y - widened<E>(static_cast<stored<E>>(high >> 16)));
}

/// Query heads of 32 Chunks channels, a lane's part of them. They are rows 0 to 7 of a matrix, what rounding to halves leaves
/// of them rows 8 to 15: one product has both, as from queries of 16 significant bits (bf16) or 22 (f16). Lane l has channels
/// [8 (t + 4 c), + 8) of head l / 4, t = l % 4, and reads those of row l / 4: which channel a product calls its k-th does not
/// matter, as long as both sides agree.
template <element_type E, int Chunks>
struct tensor_queries {
  std::uint32_t part[Chunks][2][4];
  float unit = 1;  ///< what products are to be multiplied by: halves hold the queries divided by it, whatever their size

  /// Takes the vector of each lane's head, which begins at element `first` if it is there and else is 0, times `factor`.
  /// Collective.
  template <class B>
  KVPOLICY_KERNEL void load(B& block, vector_rows const& queries, std::int64_t first, bool there, float factor) {
    float channels[Chunks][8];
    fetch(block, queries, first, there, channels);
    take(block.tile(), channels, factor);
  }
  /// The first half of load(): the lane's channels are on their way.
  template <class B>
  KVPOLICY_KERNEL static void fetch(B& block, vector_rows const& queries, std::int64_t first, bool there,
                                    float (&channels)[Chunks][8]) {
    auto const t = static_cast<std::int32_t>(block.tile().lane()) & 3;
    KVPOLICY_UNROLL
    for (int c = 0; c < Chunks; ++c) {
      if (there) {
        get_eight(block, queries, first + 8 * (t + 4 * c), channels[c]);
      } else {
        KVPOLICY_UNROLL
        for (int i = 0; i < 8; ++i) channels[c][i] = 0;
      }
    }
  }
  /// The second half. Collective.
  template <class Tile>
  KVPOLICY_KERNEL void take(Tile const& tile, float (&channels)[Chunks][8], float factor) {
    float size = 0;
    KVPOLICY_UNROLL
    for (int c = 0; c < Chunks; ++c) {
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) {
        channels[c][i] *= factor;
        size = fabsf(channels[c][i]) > size ? fabsf(channels[c][i]) : size;
      }
    }
    KVPOLICY_UNROLL
    for (unsigned mask = 1; mask < 4; mask *= 2) {
      float const other = tile.shfl_xor(size, mask);
      size = other > size ? other : size;
    }
    // A power of two that makes the largest channel less than 1, from its exponent: neither it nor its inverse is subnormal.
    std::uint32_t exponent = __builtin_bit_cast(std::uint32_t, size) >> 23;
    exponent = exponent < 1 ? 1 : exponent > 252 ? 252 : exponent;
    unit = __builtin_bit_cast(float, (exponent + 1) << 23);
    float const share = __builtin_bit_cast(float, (253 - exponent) << 23);
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

  /// Leaves the channels that are not negative, and returns those that are, in the same unit.
  KVPOLICY_KERNEL tensor_queries take_negative() {
    tensor_queries negative;
    negative.unit = unit;
    KVPOLICY_UNROLL
    for (int c = 0; c < Chunks; ++c) {
      KVPOLICY_UNROLL
      for (int step = 0; step < 2; ++step) {
        KVPOLICY_UNROLL
        for (int pair = 0; pair < 4; pair += 2) {
          // Remainders go where their values go, whatever their own signs.
          std::uint32_t const signs = ((part[c][step][pair] >> 15) & 0x10001) * 0xffff;
          KVPOLICY_UNROLL
          for (int i = pair; i < pair + 2; ++i) {
            negative.part[c][step][i] = part[c][step][i] & signs;
            part[c][step][i] &= ~signs;
          }
        }
      }
    }
    return negative;
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

}  // namespace kvpolicy::gpu::detail
