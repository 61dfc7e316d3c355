// Scores of a prompt's tokens from their own rows: norms, similarity to the mean direction, spread within a partition, and how
// much the queries behind a token want it.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/base/rows.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// The token of one head that this thread's lanes share, and its channels.
template <class B>
struct shared_row {
  row_lanes share;
  std::int32_t part;
  std::int64_t token;

  KVPOLICY_KERNEL shared_row(B& block, batch_rows const& rows) : share(rows.parts()) {
    auto const tile = block.tile();
    auto const lane = static_cast<std::int32_t>(tile.lane());
    part = lane & (share.lanes - 1);
    token =
        (static_cast<std::int64_t>(block.x()) * (B::threads / 32) + tile.index()) * share.rows_of_warp() + lane / share.lanes;
  }
};

/// Tokens that a block of `threads` works on, for the grid.
constexpr std::int64_t rows_of_block(batch_rows const& rows, unsigned threads) noexcept {
  return static_cast<std::int64_t>(threads) / 32 * row_lanes(rows.parts()).rows_of_warp();
}

template <element_type E>
struct row_norms_body : no_shared {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "row_norms";
  struct arguments {
    batch_rows rows;
    std::int64_t tokens = 0;
    buffer<float> norms;  ///< `[heads, stride]`
    std::int64_t stride = 0;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    shared_row<B> const mine(block, a.rows);
    row_reader<E, B> const rows(block, a.rows, 0);
    float x[8] = {};
    if (a.tokens > mine.token && a.rows.parts() > mine.part) rows.load(rows.offset(block.y(), mine.token), mine.part, x);
    float square = 0;
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) square += x[i] * x[i];
    square = lane_sum(block.tile(), square, mine.share.lanes);
    if (a.tokens > mine.token && mine.part == 0) block.global(a.norms)[block.y() * a.stride + mine.token] = sqrtf(square);
  }
};

/// One block a partition and head: the next partition's range of each channel, then the deviation within each row of this one.
template <element_type E>
struct partition_deviation_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "partition_deviation";
  struct arguments {
    batch_rows rows;
    std::int64_t first = 0;
    std::int64_t size = 1;
    buffer<float> spread;  ///< `[heads, stride]`
    std::int64_t stride = 0;
  };
  template <class B>
  struct shared {
    typename B::template array<float, 128 * 8> low;
    typename B::template array<float, 128 * 8> high;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    auto const tile = block.tile();
    row_lanes const share(a.rows.parts());
    auto const lane = static_cast<std::int32_t>(tile.lane());
    std::int32_t const part = lane & (share.lanes - 1);
    bool const reads = part < a.rows.parts();
    std::int64_t const at_once = static_cast<std::int64_t>(B::threads) / share.lanes;
    std::int64_t const mine = tile.index() * share.rows_of_warp() + lane / share.lanes;
    std::int64_t const begin = a.first + block.x() * a.size;
    row_reader<E, B> const rows(block, a.rows, 0);
    auto const thread = static_cast<std::int32_t>(block.thread());
    constexpr float inf = __builtin_huge_valf();
    float low[8];
    float high[8];
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) {
      low[i] = inf;
      high[i] = -inf;
    }
    for (std::int64_t t = begin + a.size + mine; t < begin + 2 * a.size; t += at_once) {
      float x[8] = {};
      if (reads) rows.load(rows.offset(block.y(), t), part, x);
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) {
        low[i] = x[i] < low[i] ? x[i] : low[i];
        high[i] = x[i] > high[i] ? x[i] : high[i];
      }
    }
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) {
      s.low[thread * 8 + i] = low[i];
      s.high[thread * 8 + i] = high[i];
    }
    block.sync();
    for (std::int32_t r = 0; r < at_once; ++r) {
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) {
        float const other_low = s.low[(r * share.lanes + part) * 8 + i];
        float const other_high = s.high[(r * share.lanes + part) * 8 + i];
        low[i] = other_low < low[i] ? other_low : low[i];
        high[i] = other_high > high[i] ? other_high : high[i];
      }
    }
    auto const dim = static_cast<float>(a.rows.head_dim);
    for (std::int64_t base = 0; base < a.size; base += at_once) {
      bool const there = base + mine < a.size;
      float x[8] = {};
      if (there && reads) rows.load(rows.offset(block.y(), begin + base + mine), part, x);
      float sum = 0;
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) {
        bool const real = part * 8 + i < a.rows.head_dim;
        x[i] = real ? (x[i] - low[i]) / (high[i] - low[i]) : 0;
        sum += x[i];
      }
      float const mean = lane_sum(tile, sum, share.lanes) / dim;
      float square = 0;
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (part * 8 + i < a.rows.head_dim) square += (x[i] - mean) * (x[i] - mean);
      }
      square = lane_sum(tile, square, share.lanes);
      if (there && part == 0) {
        block.global(a.spread)[block.y() * a.stride + (begin - a.first) + base + mine] = sqrtf(square / (dim - 1));
      }
    }
  }
};

/// scores(h, m - first): the mean of q.k_m over the group's queries of the tokens right behind m.
template <element_type E>
struct following_queries_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "following_queries";
  struct arguments {
    vector_rows queries;  ///< `[tokens, q_heads, head_dim]` of tokens [begin, begin + count)
    std::int64_t begin = 0;
    std::int64_t count = 0;
    std::int32_t group = 1;
    batch_rows keys;
    std::int64_t first = 0;
    std::int64_t last = 0;
    std::int64_t local = 0;
    buffer<std::int32_t const> positions;  ///< of the keys' tokens, or none
    buffer<float> scores;                  ///< `[heads, stride]`
    std::int64_t stride = 0;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    shared_row<B> const mine(block, a.keys);
    std::int64_t const m = a.first + mine.token;
    bool const there = m < a.last;
    row_reader<E, B> const keys(block, a.keys, 0);
    float key[8] = {};
    if (there && a.keys.parts() > mine.part) keys.load(keys.offset(block.y(), m), mine.part, key);
    std::int64_t next = m + 1;
    if (there && a.positions.data != nullptr) {
      std::int32_t const position = block.global(a.positions)[m];
      next = position + 1;
    }
    std::int64_t const from = next > a.begin ? next : a.begin;
    std::int64_t const behind = next + a.local < a.begin + a.count ? next + a.local : a.begin + a.count;
    std::int64_t const to = there ? behind : from;
    float sum = 0;
    for (std::int64_t t = from; t < to; ++t) {
      for (std::int32_t g = 0; g < a.group; ++g) {
        std::int64_t const at =
            (t - a.begin) * a.queries.token_stride + (block.y() * a.group + g) * a.queries.head_stride + mine.part * 8;
        KVPOLICY_UNROLL
        for (int i = 0; i < 8; ++i) {
          if (mine.part * 8 + i < a.keys.head_dim) sum += get(block, a.queries, at + i) * key[i];
        }
      }
    }
    sum = lane_sum(block.tile(), sum, mine.share.lanes);
    if (there && mine.part == 0) {
      block.global(a.scores)[block.y() * a.stride + mine.token] =
          from < to ? sum / static_cast<float>((to - from) * a.group) : 0.0f;
    }
  }
};

}  // namespace kvpolicy::gpu::detail
