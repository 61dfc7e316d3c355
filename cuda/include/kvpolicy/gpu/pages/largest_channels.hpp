// Queries of which few channels count (RocketKV).
#pragma once

#include <cmath>

#include "kvpolicy/gpu/base/radix.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// Copies a step's queries, but only the channels where a KV head's queries are largest in sum; the others are 0. One block a
/// KV head and sequence.
struct largest_channels_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "largest_channels";
  struct arguments {
    vector_rows queries;
    std::int32_t group = 1;
    std::int32_t heads = 1;  ///< KV heads
    std::int32_t head_dim = 0;
    std::int32_t channels = 0;  ///< that count
    per_sequence tokens;
    buffer<float> largest;  ///< `[sequences, q_heads, head_dim]`
  };
  template <class B>
  struct shared {
    typename B::template array<std::uint32_t, max_wide_dim> sizes;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    if (a.tokens.of(block, block.y()) == 0) return;
    auto const thread = static_cast<std::int32_t>(block.thread());
    std::int64_t const first = a.queries.begin(block, block.y()) + block.x() * a.group * a.queries.head_stride;
    for (std::int32_t d = thread; d < a.head_dim; d += B::threads) {
      float size = 0;
      for (std::int32_t g = 0; g < a.group; ++g) size += fabsf(get(block, a.queries, first + g * a.queries.head_stride + d));
      s.sizes[d] = sortable_key(size);
    }
    block.sync();
    std::int64_t const to = (static_cast<std::int64_t>(block.y()) * a.heads + block.x()) * a.group * a.head_dim;
    for (std::int32_t d = thread; d < a.head_dim; d += B::threads) {
      std::uint32_t const mine = s.sizes[d];
      std::int32_t larger = 0;
      for (std::int32_t other = 0; other < a.head_dim; ++other) {
        std::uint32_t const size = s.sizes[other];
        larger += size > mine || (size == mine && other < d) ? 1 : 0;
      }
      for (std::int32_t g = 0; g < a.group; ++g) {
        float const x = larger < a.channels ? get(block, a.queries, first + g * a.queries.head_stride + d) : 0;
        block.global(a.largest)[to + g * a.head_dim + d] = x;
      }
    }
  }
};

}  // namespace kvpolicy::gpu::detail
