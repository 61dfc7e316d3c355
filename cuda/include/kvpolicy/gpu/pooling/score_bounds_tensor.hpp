// Bounds of units on tensor cores: 8 units a warp and turn, blocks that take what there is in turns; and beside them, the
// pooling of a step's token.
#pragma once

#include "kvpolicy/gpu/base/tensor_queries.hpp"
#include "kvpolicy/gpu/pooling/score_bounds.hpp"

namespace kvpolicy::gpu::detail {

/// As score_bounds_body, for up to 8 query heads of 32 Chunks channels.
template <element_type E, int Chunks>
struct score_bounds_tensor_body : no_shared {
  static constexpr unsigned threads = 128;
  /// Of rows up to 128 channels; with 3, 128K tokens took half as long again on an H100. Longer ones need more registers.
  static constexpr unsigned least_blocks = Chunks > 4 ? 2 : 4;
  static constexpr char const* name = "score_bounds_tensor";
  static constexpr int units_of_block = 64;  ///< at least: a warp's second turn makes up for reading the queries
  struct arguments : score_bounds_body<E>::arguments {
    std::int32_t blocks = 1;  ///< that share a head's units
    std::int32_t before = 0;  ///< blocks of the grid that do something else
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto const tile = block.tile();
    auto const g = static_cast<std::int32_t>(tile.lane()) >> 2;
    auto const t = static_cast<std::int32_t>(tile.lane()) & 3;
    unsigned const number = a.number(block);
    std::int64_t const count = a.count.of(block, number);
    std::int64_t const first = a.first.of(block, number);
    constexpr std::int64_t warps = B::threads / 32;
    std::int64_t at = 8 * ((static_cast<std::int64_t>(block.x()) - a.before) * warps + tile.index());
    if (at >= count) return;
    row_reader<E, B, true> const bounds(block, a.bounds, block.z());
    tensor_queries<E, Chunks> above;  // what takes the maxima
    std::int64_t const q_head = static_cast<std::int64_t>(block.y()) * a.group + g;
    above.load(block, a.queries, a.queries.begin(block, block.z()) + q_head * a.queries.head_stride, g < a.group, 1);
    tensor_queries<E, Chunks> const below = above.take_negative();  // and what the minima
    for (std::int64_t const step = 8 * warps * a.blocks; at < count; at += step) {
      std::int64_t const mine = first + (at + g < count ? at + g : count - 1);
      typename row_reader<E, B, true>::raw high[Chunks];
      typename row_reader<E, B, true>::raw low[Chunks];
      std::int64_t const high_at = bounds.offset(block.y(), 2 * mine);
      std::int64_t const low_at = high_at + a.bounds.token_stride;
      KVPOLICY_UNROLL
      for (int c = 0; c < Chunks; ++c) {
        high[c] = bounds.load_raw(high_at, t + 4 * c);
        low[c] = bounds.load_raw(low_at, t + 4 * c);
      }
      float sum[4] = {};
      above.multiply(tile, high, sum);
      below.multiply(tile, low, sum);
      KVPOLICY_UNROLL
      for (int i = 0; i < 2; ++i) {
        float score = (sum[i] + sum[2 + i]) * above.unit;
        if (g >= a.group) score = a.merged == group_merge::mean ? 0 : -__builtin_huge_valf();
        KVPOLICY_UNROLL
        for (unsigned mask = 4; mask < 32; mask *= 2) {
          float const other = tile.shfl_xor(score, mask);
          if (a.merged == group_merge::mean) score += other;
          else if (other > score || other != other) score = other;
        }
        if (g == 0 && at + 2 * t + i < count) {
          block.global(a.scores)[block.z() * a.sequence_stride + block.y() * a.head_stride + first + at + 2 * t + i] =
              a.merged == group_merge::mean ? score / static_cast<float>(a.group) : score;
        }
      }
    }
  }
};

/// A step's token is folded into its page in a head's first block, while the others score pages, of which that is none.
template <class Pool, class Score>
struct pool_beside_bounds_body {
  static_assert(Pool::threads == Score::threads);
  static constexpr unsigned threads = Score::threads;
  static constexpr unsigned least_blocks = Score::least_blocks;
  static constexpr char const* name = "pool_beside_bounds";
  struct arguments {
    typename Pool::arguments pool;
    typename Score::arguments score;
  };
  template <class B>
  struct shared {
    typename Pool::template shared<B> pool;
    typename Score::template shared<B> score;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    if (block.x() == 0) Pool::run(block, s.pool, a.pool);
    else Score::run(block, s.score, a.score);
  }
};

}  // namespace kvpolicy::gpu::detail
