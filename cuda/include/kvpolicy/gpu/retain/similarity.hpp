// How like the mean direction of all keys each key is.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/retain/row_scores.hpp"

namespace kvpolicy::gpu::detail {

/// Sums of key / |key| over a stretch of tokens: one block a stretch and head, in the order of the tokens.
template <element_type E>
struct direction_sums_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "direction_sums";
  static constexpr std::int64_t stretch = 256;  ///< tokens
  struct arguments {
    batch_rows keys;
    std::int64_t tokens = 0;
    buffer<float> sums;  ///< `[heads, stretches, head_dim]`
    std::int64_t stretches = 0;
  };
  template <class B>
  struct shared {
    typename B::template array<float, 128 * 8> sums;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    auto const tile = block.tile();
    row_lanes const share(a.keys.parts());
    auto const lane = static_cast<std::int32_t>(tile.lane());
    std::int32_t const part = lane & (share.lanes - 1);
    std::int64_t const rows_at_once = static_cast<std::int64_t>(B::threads) / share.lanes;
    std::int64_t const mine = tile.index() * share.rows_of_warp() + lane / share.lanes;
    row_reader<E, B> const keys(block, a.keys, 0);
    float sum[8] = {};
    for (std::int64_t at = 0; at < stretch; at += rows_at_once) {
      std::int64_t const token = block.x() * stretch + at + mine;
      bool const there = token < a.tokens && at + mine < stretch;
      float x[8] = {};
      if (there && part < a.keys.parts()) keys.load(keys.offset(block.y(), token), part, x);
      float square = 0;
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) square += x[i] * x[i];
      square = lane_sum(tile, square, share.lanes);
      float const norm = sqrtf(square);
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) sum[i] += norm == 0 ? 0.0f : x[i] / norm;
    }
    auto const thread = static_cast<std::int32_t>(block.thread());
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) s.sums[thread * 8 + i] = sum[i];
    block.sync();
    for (std::int32_t d = thread; d < a.keys.head_dim; d += B::threads) {
      float all = 0;
      for (std::int32_t r = 0; r < rows_at_once; ++r) {
        float const one = s.sums[(r * share.lanes + d / 8) * 8 + d % 8];
        all += one;
      }
      block.global(a.sums)[(block.y() * a.stretches + block.x()) * a.keys.head_dim + d] = all;
    }
  }
};

/// Unit vector of each head's mean direction, or zeros.
struct mean_direction_body {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "mean_direction";
  struct arguments {
    buffer<float const> sums;  ///< `[heads, stretches, head_dim]`
    std::int64_t stretches = 0;
    std::int64_t head_dim = 0;
    buffer<float> direction;  ///< `[heads, head_dim]`
  };
  template <class B>
  struct shared {
    typename B::template reduce_storage<float> reduce;
    typename B::template array<float, 1> square;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    auto const sums = block.global(a.sums);
    auto const direction = block.global(a.direction);
    float square = 0;
    for (std::int64_t d = block.thread(); d < a.head_dim; d += B::threads) {
      float sum = 0;
      for (std::int64_t i = 0; i < a.stretches; ++i) {
        float const one = sums[(block.x() * a.stretches + i) * a.head_dim + d];
        sum += one;
      }
      direction[block.x() * a.head_dim + d] = sum;
      square += sum * sum;
    }
    square = block.reduce(s.reduce, square, [](float x, float y) { return x + y; });
    if (block.thread() == 0) s.square[0] = square;
    block.sync();
    square = s.square[0];
    float const norm = sqrtf(square);
    for (std::int64_t d = block.thread(); d < a.head_dim; d += B::threads) {
      float const sum = direction[block.x() * a.head_dim + d];
      direction[block.x() * a.head_dim + d] = norm == 0 ? 0.0f : sum / norm;
    }
  }
};

/// cosines(h, t) = key / |key| . direction(h); 0 where either is zero.
template <element_type E>
struct cosines_body : no_shared {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "cosines";
  struct arguments {
    batch_rows keys;
    std::int64_t tokens = 0;
    buffer<float const> direction;  ///< `[heads, head_dim]`
    buffer<float> cosines;          ///< `[heads, stride]`
    std::int64_t stride = 0;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    shared_row<B> const mine(block, a.keys);
    row_reader<E, B> const keys(block, a.keys, 0);
    auto const direction = block.global(a.direction);
    float x[8] = {};
    if (a.tokens > mine.token && a.keys.parts() > mine.part) keys.load(keys.offset(block.y(), mine.token), mine.part, x);
    float square = 0;
    float product = 0;
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (mine.part * 8 + i >= a.keys.head_dim) continue;
      float const along = direction[block.y() * a.keys.head_dim + mine.part * 8 + i];
      square += x[i] * x[i];
      product += x[i] * along;
    }
    square = lane_sum(block.tile(), square, mine.share.lanes);
    product = lane_sum(block.tile(), product, mine.share.lanes);
    if (mine.token >= a.tokens || mine.part != 0) return;
    block.global(a.cosines)[block.y() * a.stride + mine.token] = square == 0 ? 0.0f : product / sqrtf(square);
  }
};

}  // namespace kvpolicy::gpu::detail
