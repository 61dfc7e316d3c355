// Scores of units: the bound of what a query could meet in each.
#pragma once

#include "kvpolicy/gpu/base/rows.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/primitive/score.hpp"

namespace kvpolicy::gpu::detail {

/// scores(s, h, u) for units u of [first, first + count): the lanes that share a unit's bounds have 8 channels each; of rows
/// above 256 (Wide) 8 of each 256.
template <element_type E, bool Wide = false>
struct score_bounds_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "score_bounds";
  static constexpr int sets = Wide ? max_wide_dim / 256 : 1;
  struct arguments {
    vector_rows queries;
    std::int32_t group = 1;
    std::int32_t head_dim = 0;
    group_merge merged = group_merge::mean;
    batch_rows bounds;  ///< rows 2u and 2u + 1 of head h: unit u's maxima and minima
    per_sequence first;
    per_sequence count;
    bool by_head = false;  ///< these two are `[sequences, heads]`
    buffer<float> scores;  ///< (s, h, u)
    std::int64_t sequence_stride = 0;
    std::int64_t head_stride = 0;

    template <class B>
    KVPOLICY_KERNEL unsigned number(B& block) const {
      return by_head ? block.z() * static_cast<unsigned>(bounds.heads) + block.y() : block.z();
    }
  };
  template <class B>
  struct shared {
    typename B::template array<float, 16 * 256 * sets> queries;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    row_lanes const share(a.bounds.parts());
    std::int64_t const of_block = B::threads / 32 * share.rows_of_warp();
    unsigned const number = a.number(block);
    std::int64_t const count = a.count.of(block, number);
    if (block.x() * of_block >= count) return;
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < a.group * a.head_dim; i += B::threads) {
      std::int32_t const g = i / a.head_dim;
      s.queries[i] =
          get(block, a.queries,
              a.queries.begin(block, block.z()) + (block.y() * a.group + g) * a.queries.head_stride + (i - g * a.head_dim));
    }
    block.sync();
    auto const tile = block.tile();
    auto const lane = static_cast<std::int32_t>(tile.lane());
    auto const part = lane & (share.lanes - 1);
    std::int64_t const nth = block.x() * of_block + tile.index() * share.rows_of_warp() + lane / share.lanes;
    bool const there = nth < count;
    std::int64_t const unit = a.first.of(block, number) + nth;
    float high[sets][8] = {};
    float low[sets][8] = {};
    if (there && part < a.bounds.parts()) {
      row_reader<E, B, true> const bounds(block, a.bounds, block.z());
      std::int64_t const at = bounds.offset(block.y(), 2 * unit);
      KVPOLICY_UNROLL
      for (int set = 0; set < sets; ++set) {
        if (Wide && part + 32 * set >= a.bounds.parts()) continue;
        bounds.load(at, part + 32 * set, high[set]);
        bounds.load(at + a.bounds.token_stride, part + 32 * set, low[set]);
      }
    }
    float sum = 0;
    float most = -__builtin_huge_valf();
    for (std::int32_t g = 0; g < a.group; ++g) {
      float bound = 0;
      KVPOLICY_UNROLL
      for (int i = 0; i < 8 * sets; ++i) {
        std::int32_t const channel = part * 8 + i % 8 + 256 * (i / 8);
        if (channel >= a.head_dim) continue;
        float const query = s.queries[g * a.head_dim + channel];
        bound += query * (query > 0 ? high[i / 8][i % 8] : low[i / 8][i % 8]);
      }
      bound = lane_sum(tile, bound, share.lanes);
      sum += bound;
      if (bound > most || bound != bound) most = bound;
    }
    if (there && part == 0) {
      block.global(a.scores)[block.z() * a.sequence_stride + block.y() * a.head_stride + unit] =
          a.merged == group_merge::mean ? sum / static_cast<float>(a.group) : most;
    }
  }
};

}  // namespace kvpolicy::gpu::detail
