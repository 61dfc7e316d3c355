// What a warp of attention over latent rows is: its queries, its channels, and how it writes what it added up.
#pragma once

#include <utility>

#include "kvpolicy/gpu/attention/attend_split.hpp"

namespace kvpolicy::gpu::detail {

namespace latent {
inline constexpr std::int32_t value_dim = 512;
inline constexpr std::int32_t max_key_dim = 640;
inline constexpr int warps = 4;
inline constexpr int value_chunks = 4;  ///< of 32 channels, of a warp
inline constexpr int chunks = value_chunks + 1;
}  // namespace latent

/// A lane's sums: of a chunk, its words, and two channels of each of two heads; or of both halves of one head's.
using latent_sums = float[latent::value_chunks][4][4];

/// A warp of attend_latent_body, where lane l, g = l / 4 and t = l % 4, has heads g and g + 8, or g alone where they are split.
template <class B, bool Split>
struct latent_warp {
  static constexpr int heads_of_lane = Split ? 1 : 2;

  B& block;
  attend_arguments const& a;
  attend_tile heads;
  decltype(std::declval<B&>().tile()) tile;
  std::int32_t g;
  std::int32_t t;
  std::int32_t warp;

  KVPOLICY_KERNEL latent_warp(B& of, attend_arguments const& given)
      : block(of),
        a(given),
        heads(of, given, 8 * heads_of_lane),
        tile(of.tile()),
        g(static_cast<std::int32_t>(tile.lane()) >> 2),
        t(static_cast<std::int32_t>(tile.lane()) & 3),
        warp(static_cast<std::int32_t>(tile.index())) {}

  /// The first of a chunk's channels.
  KVPOLICY_KERNEL std::int32_t channel(int c) const {
    return c < latent::value_chunks ? 32 * (latent::value_chunks * warp + c) : latent::value_dim + 32 * warp;
  }
  KVPOLICY_KERNEL bool has(int c) const { return c < latent::value_chunks || channel(c) < a.keys.head_dim; }

  /// A list's result; of a split its part, which the last of `splits` to come puts together.
  KVPOLICY_KERNEL void finish(typename B::last_storage& last, std::int32_t splits,
                              softmax_state<powers_of_two> (&states)[heads_of_lane], latent_sums const& sum) const {
    bool const there = a.out.rows.has(block, block.z());
    KVPOLICY_UNROLL
    for (int h = 0; h < heads_of_lane; ++h) {
      KVPOLICY_UNROLL
      for (unsigned mask = 1; mask < 4; mask *= 2) states[h].total += tile.shfl_xor(states[h].total, mask);
      std::int32_t const head = g + 8 * h;
      if (!there || head >= heads.real) continue;
      if (splits == 1) write(head, states[h], sum);
      else write_part(head, states[h], sum);
    }
    std::int64_t const of = static_cast<std::int64_t>(block.z()) * a.keys.heads * a.tiles + block.y();
    if (splits > 1 && block.last_of(last, a.counters, of, splits) && there)
      merge_splits<latent::value_dim>(block, a, heads, splits);
  }

  /// Calls each(channel, sum) for the lane's channels of a head.
  template <class Each>
  KVPOLICY_KERNEL void each_channel(std::int32_t head, latent_sums const& sum, Each each) const {
    KVPOLICY_UNROLL
    for (int c = 0; c < latent::value_chunks; ++c) {
      KVPOLICY_UNROLL
      for (int w = 0; w < 4; ++w) {
        KVPOLICY_UNROLL
        for (int i = 0; i < 2; ++i) {
          float const weighted = Split ? sum[c][w][i] + sum[c][w][2 + i] : head < 8 ? sum[c][w][i] : sum[c][w][2 + i];
          each(channel(c) + 8 * t + 2 * w + i, weighted);
        }
      }
    }
  }
  KVPOLICY_KERNEL void write(std::int32_t head, softmax_state<powers_of_two> state, latent_sums const& sum) const {
    float share = 1;
    if (a.terms.sinks.data != nullptr) {
      float const most = state.most;
      state.merge(sink_of(block, a, heads, head), 1);
      share = powers_of_two::of(most - state.most);
    }
    std::int64_t const at = heads.element(block, a, a.out, head);
    each_channel(head, sum, [&](std::int32_t d, float weighted) {
      put(block, a.out, at + d, state.total == 0 ? 0.0f : weighted * share / state.total);
    });
    if (warp == 0 && t == 0 && a.log_sum_exp.data != nullptr)
      block.global(a.log_sum_exp)[heads.row(a, block.z(), head)] = log_sum_exp(state.most, state.total);
  }
  KVPOLICY_KERNEL void write_part(std::int32_t head, softmax_state<powers_of_two> const& state, latent_sums const& sum) const {
    auto const partial = block.global(a.partial);
    std::int64_t const at = (heads.row(a, block.z(), head) * a.splits + block.x()) * (latent::value_dim + 2);
    each_channel(head, sum, [&](std::int32_t d, float weighted) { partial[at + 2 + d] = weighted; });
    if (warp == 0 && t == 0) {
      partial[at] = state.most;
      partial[at + 1] = state.total;
    }
  }
};

}  // namespace kvpolicy::gpu::detail
