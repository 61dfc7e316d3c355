// Logits of listed tokens, and the statistics of their softmax.
#pragma once

#include "kvpolicy/gpu/attention/lists.hpp"
#include "kvpolicy/gpu/attention/softmax_state.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// logits(s, q, i) = scale q.k of the i-th listed token: the lanes that share a row have 8 channels each; of rows above 256
/// (Wide) 8 of each 256.
template <element_type E, bool Wide = false>
struct list_logits_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "list_logits";
  static constexpr int sets = Wide ? max_wide_dim / 256 : 1;
  struct arguments {
    vector_rows queries;
    float scale = 1;
    std::int32_t group = 1;         ///< query rows of a KV head that are worked on: [first_row, first_row + group)
    std::int32_t rows_of_head = 1;  ///< of the queries and the logits
    std::int32_t first_row = 0;
    batch_rows keys;
    token_lists lists;
    std::int64_t first = 0;  ///< of the list; logits begin there
    buffer<float> logits;    ///< `[sequences, q_heads, stride]`
    std::int64_t stride = 0;
  };
  template <class B>
  struct shared {
    typename B::template array<float, 16 * 256> queries;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int32_t const dim = a.keys.head_dim;
    row_lanes const share(a.keys.parts());
    list_reader<B> const list(block, a.lists, block.z(), block.y());
    std::int64_t const of_block = B::threads / 32 * share.rows_of_warp();
    if (a.first + block.x() * of_block >= list.count()) return;
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < a.group * dim; i += B::threads) {
      std::int32_t const g = i / dim;
      s.queries[i] = a.scale * get(block, a.queries,
                                   a.queries.begin(block, block.z()) +
                                       (block.y() * a.rows_of_head + a.first_row + g) * a.queries.head_stride + (i - g * dim));
    }
    block.sync();
    auto const tile = block.tile();
    auto const lane = static_cast<std::int32_t>(tile.lane());
    std::int32_t const part = lane & (share.lanes - 1);
    row_reader<E, B, true> const keys(block, a.keys, block.z());
    std::int64_t const i = block.x() * of_block + tile.index() * share.rows_of_warp() + lane / share.lanes;
    bool const there = a.first + i < list.count();
    float key[sets][8] = {};
    if (there && part < a.keys.parts()) {
      std::int64_t const at = keys.offset(block.y(), list.token(a.first + i));
      KVPOLICY_UNROLL
      for (int set = 0; set < sets; ++set)
        if (!Wide || part + 32 * set < a.keys.parts()) keys.load(at, part + 32 * set, key[set]);
    }
    for (std::int32_t g = 0; g < a.group; ++g) {
      float dot = 0;
      KVPOLICY_UNROLL
      for (int c = 0; c < 8 * sets; ++c) {
        std::int32_t const channel = part * 8 + c % 8 + 256 * (c / 8);
        if (channel >= dim) continue;
        float const query = s.queries[g * dim + channel];
        dot += query * key[c / 8][c % 8];
      }
      dot = lane_sum(tile, dot, share.lanes);
      if (there && part == 0) {
        std::int64_t const q =
            (static_cast<std::int64_t>(block.z()) * a.keys.heads + block.y()) * a.rows_of_head + a.first_row + g;
        block.global(a.logits)[q * a.stride + i] = dot;
      }
    }
  }
};

/// For each row of logits: its maximum, and 1 / sum of e^(logit - maximum). Blocks share a row; parts are merged in their
/// order.
struct softmax_rows_body {
  static constexpr unsigned threads = 512;
  static constexpr char const* name = "softmax_rows";
  static constexpr int at_once = 8;              ///< logits of a thread that are on their way together
  static constexpr std::int64_t most_parts = 4;  ///< of a row: more would only start, and end, in steps that do not look
  struct arguments {
    buffer<float const> logits;  ///< `[rows, stride]`
    std::int64_t stride = 0;
    token_lists lists;  ///< whose lengths rows have
    std::int64_t first = 0;
    std::int32_t q_heads = 0;
    std::int32_t group = 1;
    buffer<float> statistics;       ///< `[rows, 2]`
    std::int32_t parts = 1;         ///< blocks that share a row
    buffer<float> partial;          ///< `[rows, parts, 2]`: maxima and sums, if there are several
    buffer<std::int32_t> counters;  ///< `[rows]` zeros, likewise
  };
  template <class B>
  struct shared {
    typename B::template reduce_storage<float> most;
    typename B::template reduce_storage<float> total;
    typename B::template array<float, 1> found;
    typename B::last_storage last;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    unsigned const q = block.y();
    list_reader<B> const list(block, a.lists, block.z(), q / static_cast<unsigned>(a.group));
    if (list.count() <= a.first) return;
    std::int64_t const row = static_cast<std::int64_t>(block.z()) * a.q_heads + q;
    softmax_state<powers_of_e> part = of_thread(block, a, row, list.count() - a.first);
    float const most = block.reduce(s.most, part.most, [](float x, float y) { return fmaxf(x, y); });
    if (block.thread() == 0) s.found[0] = most;
    block.sync();
    part.total *= part.raise(s.found[0]);
    part.total = block.reduce(s.total, part.total, [](float x, float y) { return x + y; });
    auto const statistics = block.global(a.statistics);
    if (a.parts > 1) {
      auto const partial = block.global(a.partial);
      if (block.thread() == 0) {
        partial[(row * a.parts + block.x()) * 2] = part.most;
        partial[(row * a.parts + block.x()) * 2 + 1] = part.total;
      }
      if (!block.last_of(s.last, a.counters, row, a.parts) || block.tile().index() != 0) return;
      auto const lane = static_cast<std::int32_t>(block.tile().lane());
      part = {};
      if (lane < a.parts) {
        part.most = partial[(row * a.parts + lane) * 2];
        part.total = partial[(row * a.parts + lane) * 2 + 1];
      }
      for (unsigned mask = 16; mask > 0; mask /= 2) part.merge_lane(block.tile(), mask);
    }
    if (block.thread() != 0) return;
    statistics[row * 2] = part.most;
    statistics[row * 2 + 1] = 1 / part.total;
  }

 private:
  /// The thread's part of the block's part of a row.
  template <class B>
  KVPOLICY_KERNEL static softmax_state<powers_of_e> of_thread(B& block, arguments const& a, std::int64_t row,
                                                              std::int64_t count) {
    auto const logits = block.global(a.logits);
    softmax_state<powers_of_e> part;
    constexpr std::int64_t turn = at_once * B::threads;
    for (std::int64_t base = block.x() * turn + block.thread(); base < count; base += a.parts * turn) {
      float logit[at_once];
      float most = part.most;
      KVPOLICY_UNROLL
      for (int i = 0; i < at_once; ++i) {
        std::int64_t const at = base + i * B::threads;
        logit[i] = logits[row * a.stride + (at < count ? at : base)];
      }
      KVPOLICY_UNROLL
      for (int i = 0; i < at_once; ++i) most = fmaxf(most, logit[i]);
      part.total *= part.raise(most);
      KVPOLICY_UNROLL
      for (int i = 0; i < at_once; ++i) {
        if (base + i * B::threads < count) part.total += part.weight(logit[i]);
      }
    }
    return part;
  }
};

}  // namespace kvpolicy::gpu::detail
