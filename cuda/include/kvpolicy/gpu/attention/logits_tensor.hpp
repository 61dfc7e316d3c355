// Logits of listed tokens on tensor cores, and their softmax's statistics: 8 rows a warp and turn, blocks that take what there
// is in turns.
#pragma once

#include "kvpolicy/gpu/attention/lists.hpp"
#include "kvpolicy/gpu/attention/softmax_state.hpp"
#include "kvpolicy/gpu/base/tensor_queries.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// As list_logits_body, for rows of 32 Chunks halves; a tile has 8 query rows of a KV head. With Counts, their softmax's
/// statistics, too, as softmax_rows_body's: parts of a row are merged in the order of their blocks.
template <element_type E, int Chunks, bool Counts, bool Placed>
struct list_logits_tensor_of {
  static constexpr unsigned threads = 128;
  struct arguments {
    vector_rows queries;
    float scale = 1;
    std::int32_t rows_of_head = 1;  ///< of the queries and the logits
    std::int32_t tiles = 1;         ///< that these are
    batch_rows keys;
    token_lists lists;
    std::int64_t first = 0;  ///< of the list; logits begin there
    buffer<float> logits;    ///< `[sequences, q_heads, stride]`
    std::int64_t stride = 0;
    std::int32_t blocks = 1;          ///< that share a list
    buffer<float> statistics{};       ///< `[sequences, q_heads, 2]`, with Counts
    buffer<float> partial{};          ///< `[sequences, q_heads, blocks, 2]`, likewise
    buffer<std::int32_t> counters{};  ///< `[sequences, kv_heads tiles]` zeros, likewise
  };
  template <class B>
  struct shared {
    typename B::template array<float, 8 * threads / 32 * 2> states;
    typename B::last_storage last;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    unsigned const head = block.y() / static_cast<unsigned>(a.tiles);
    std::int32_t const row = 8 * (static_cast<std::int32_t>(block.y()) - static_cast<std::int32_t>(head) * a.tiles);
    auto const tile = block.tile();
    auto const g = static_cast<std::int32_t>(tile.lane()) >> 2;
    auto const t = static_cast<std::int32_t>(tile.lane()) & 3;
    list_reader<B> const list(block, a.lists, block.z(), head);
    std::int64_t const count = list.count() - a.first;
    constexpr std::int64_t warps = B::threads / 32;
    std::int64_t at = 8 * (static_cast<std::int64_t>(block.x()) * warps + tile.index());
    if (8 * static_cast<std::int64_t>(block.x()) * warps >= count) return;
    row_reader<E, B, Placed> const keys(block, a.keys, block.z());
    std::int32_t const real = a.rows_of_head - row < 8 ? a.rows_of_head - row : 8;
    std::int64_t const first_q = static_cast<std::int64_t>(head) * a.rows_of_head + row;
    tensor_queries<E, Chunks> query;
    query.load(block, a.queries, a.queries.begin(block, block.z()) + (first_q + g) * a.queries.head_stride, g < real, a.scale);
    auto const place_of = [&](std::int64_t from) {
      std::int64_t const i = from + g < count ? from + g : count - 1;
      return keys.offset(head, list.token(a.first + i));
    };
    using packs = typename row_reader<E, B, Placed>::raw;
    auto const load = [&](std::int64_t from, packs(&into)[Chunks]) {
      KVPOLICY_UNROLL
      for (int c = 0; c < Chunks; ++c) into[c] = keys.load_raw(from, t + 4 * c);
    };
    std::int64_t const step = 8 * warps * a.blocks;
    packs coming[Chunks] = {};
    load(place_of(at), coming);
    std::int64_t next = place_of(at + step);
    std::int64_t const q = static_cast<std::int64_t>(block.z()) * a.keys.heads * a.rows_of_head + first_q + g;
    softmax_state<powers_of_e> state;
    for (; at < count; at += step) {  // the next rows are on their way, and the place of those after them
      packs key[Chunks];
      KVPOLICY_UNROLL
      for (int c = 0; c < Chunks; ++c) key[c] = coming[c];
      if (at + step < count) load(next, coming);
      next = place_of(at + 2 * step);
      float product[4] = {};
      query.multiply(tile, key, product);
      float logits[2];
      KVPOLICY_UNROLL
      for (int i = 0; i < 2; ++i) {
        bool const there = at + 2 * t + i < count;
        logits[i] = (product[i] + product[2 + i]) * query.unit;
        if (g < real && there) block.global(a.logits)[q * a.stride + at + 2 * t + i] = logits[i];
        if (!there) logits[i] = no_logit;
      }
      if constexpr (Counts) state.add(logits);
    }
    if constexpr (Counts) finish(block, s, a, first_q, g, t, real, count, state);
  }

 private:
  /// The block's part of each row's statistics; the last block to come puts the parts together.
  template <class B>
  KVPOLICY_KERNEL static void finish(B& block, shared<B>& s, arguments const& a, std::int64_t first_q, std::int32_t g,
                                     std::int32_t t, std::int32_t real, std::int64_t count, softmax_state<powers_of_e> state) {
    auto const tile = block.tile();
    constexpr std::int64_t warps = B::threads / 32;
    KVPOLICY_UNROLL
    for (unsigned mask = 1; mask < 4; mask *= 2) state.merge_lane(tile, mask);
    if (t == 0) {
      s.states[(g * warps + tile.index()) * 2] = state.most;
      s.states[(g * warps + tile.index()) * 2 + 1] = state.total;
    }
    block.sync();
    auto const partial = block.global(a.partial);
    auto const thread = static_cast<std::int32_t>(block.thread());
    std::int64_t const first_of_block = static_cast<std::int64_t>(block.z()) * a.keys.heads * a.rows_of_head + first_q;
    if (thread < real) {
      softmax_state<powers_of_e> all;
      for (std::int32_t w = 0; w < warps; ++w) {
        float const most = s.states[(thread * warps + w) * 2];
        float const total = s.states[(thread * warps + w) * 2 + 1];
        all.merge(most, total);
      }
      partial[((first_of_block + thread) * a.blocks + block.x()) * 2] = all.most;
      partial[((first_of_block + thread) * a.blocks + block.x()) * 2 + 1] = all.total;
    }
    std::int64_t const all_blocks = (count + 8 * warps - 1) / (8 * warps);
    auto const working = static_cast<std::int32_t>(all_blocks < a.blocks ? all_blocks : a.blocks);
    std::int64_t const counter = static_cast<std::int64_t>(block.z()) * a.keys.heads * a.tiles + block.y();
    if (!block.last_of(s.last, a.counters, counter, working)) return;
    for (auto r = static_cast<std::int32_t>(tile.index()); r < real; r += static_cast<std::int32_t>(warps)) {
      softmax_state<powers_of_e> all;
      for (auto part = static_cast<std::int32_t>(tile.lane()); part < working; part += 32) {
        float const most = partial[((first_of_block + r) * a.blocks + part) * 2];
        float const total = partial[((first_of_block + r) * a.blocks + part) * 2 + 1];
        all.merge(most, total);
      }
      KVPOLICY_UNROLL
      for (unsigned mask = 16; mask > 0; mask /= 2) all.merge_lane(tile, mask);
      if (tile.lane() != 0) continue;
      block.global(a.statistics)[(first_of_block + r) * 2] = all.most;
      block.global(a.statistics)[(first_of_block + r) * 2 + 1] = 1 / all.total;
    }
  }
};

template <element_type E, int Chunks>
struct list_logits_tensor_body : list_logits_tensor_of<E, Chunks, false, false> {
  static constexpr char const* name = "list_logits_tensor";
};
/// Of summaries, which have places.
template <element_type E, int Chunks>
struct unit_logits_tensor_body : list_logits_tensor_of<E, Chunks, false, true> {
  static constexpr char const* name = "unit_logits_tensor";
};
template <element_type E, int Chunks>
struct list_statistics_tensor_body : list_logits_tensor_of<E, Chunks, true, false> {
  static constexpr char const* name = "list_statistics_tensor";
};

}  // namespace kvpolicy::gpu::detail
