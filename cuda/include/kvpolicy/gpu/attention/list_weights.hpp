// Softmax over rows that don't fit a block: statistics first, then weights, merged over query groups.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/attention/lists.hpp"

namespace kvpolicy::gpu::detail {

/// logits(s, q, i) = scale q.k of the i-th listed token: the lanes that share a row have 8 channels each.
template <element_type E>
struct list_logits_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "list_logits";
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
                                   block.z() * a.queries.sequence_stride +
                                       (block.y() * a.rows_of_head + a.first_row + g) * a.queries.head_stride + (i - g * dim));
    }
    block.sync();
    auto const tile = block.tile();
    auto const lane = static_cast<std::int32_t>(tile.lane());
    std::int32_t const part = lane & (share.lanes - 1);
    row_reader<E, B> const keys(block, a.keys, block.z());
    std::int64_t const i = block.x() * of_block + tile.index() * share.rows_of_warp() + lane / share.lanes;
    bool const there = a.first + i < list.count();
    float key[8] = {};
    if (there && part < a.keys.parts()) keys.load(keys.offset(block.y(), list.token(a.first + i)), part, key);
    for (std::int32_t g = 0; g < a.group; ++g) {
      float dot = 0;
      KVPOLICY_UNROLL
      for (int c = 0; c < 8; ++c) {
        if (part * 8 + c >= dim) continue;
        float const query = s.queries[g * dim + part * 8 + c];
        dot += query * key[c];
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

/// For each row of logits: its maximum, and 1 / sum of e^(logit - maximum). Log-sum-exp in a fixed order.
struct softmax_rows_body {
  static constexpr unsigned threads = 512;
  static constexpr char const* name = "softmax_rows";
  static constexpr int at_once = 8;  ///< logits of a thread that are on their way together
  struct arguments {
    buffer<float const> logits;  ///< `[rows, stride]`
    std::int64_t stride = 0;
    token_lists lists;  ///< whose lengths rows have
    std::int64_t first = 0;
    std::int32_t q_heads = 0;
    std::int32_t group = 1;
    buffer<float> statistics;  ///< `[rows, 2]`
  };
  template <class B>
  struct shared {
    typename B::template reduce_storage<float> most;
    typename B::template reduce_storage<float> total;
    typename B::template array<float, 1> found;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    unsigned const q = block.x();
    list_reader<B> const list(block, a.lists, block.y(), q / static_cast<unsigned>(a.group));
    if (list.count() <= a.first) return;
    std::int64_t const row = static_cast<std::int64_t>(block.y()) * a.q_heads + q;
    auto const logits = block.global(a.logits);
    std::int64_t const count = list.count() - a.first;
    auto const each = [&](auto visit) {
      for (std::int64_t base = block.thread(); base < count; base += at_once * B::threads) {
        float logit[at_once];
        KVPOLICY_UNROLL
        for (int i = 0; i < at_once; ++i) {
          std::int64_t const at = base + i * B::threads;
          logit[i] = logits[row * a.stride + (at < count ? at : count - 1)];
        }
        KVPOLICY_UNROLL
        for (int i = 0; i < at_once; ++i) {
          if (base + i * B::threads < count) visit(logit[i]);
        }
      }
    };
    float most = -__builtin_huge_valf();
    each([&](float x) { most = x > most ? x : most; });
    most = block.reduce(s.most, most, [](float x, float y) { return x > y ? x : y; });
    if (block.thread() == 0) s.found[0] = most;
    block.sync();
    most = s.found[0];
    float total = 0;
    each([&](float x) { total += expf(x - most); });
    total = block.reduce(s.total, total, [](float x, float y) { return x + y; });
    if (block.thread() != 0) return;
    auto const statistics = block.global(a.statistics);
    statistics[row * 2] = most;
    statistics[row * 2 + 1] = 1 / total;
  }
};

/// out(s, h, i) = mean over KV head h's query heads of e^(logit - maximum) / sum.
struct group_weights_body : no_shared {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "group_weights";
  struct arguments {
    buffer<float const> logits;
    std::int64_t stride = 0;
    buffer<float const> statistics;
    token_lists lists;
    std::int64_t first = 0;
    std::int32_t group = 1;
    std::int32_t heads = 1;     ///< of the output
    std::int32_t per_list = 1;  ///< of them share a list
    buffer<float> out;          ///< (s, h, i)
    std::int64_t sequence_stride = 0;
    std::int64_t head_stride = 0;
    bool maximum = false;     ///< of the group, not its mean
    std::int32_t blocks = 1;  ///< that share a row
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    list_reader<B> const list(block, a.lists, block.z(), block.y() / static_cast<unsigned>(a.per_list));
    auto const logits = block.global(a.logits);
    auto const statistics = block.global(a.statistics);
    std::int64_t const count = list.count() - a.first;
    for (std::int64_t i = index_in_grid(block); i < count; i += static_cast<std::int64_t>(a.blocks) * B::threads) {
      float merged = 0;
      for (std::int32_t g = 0; g < a.group; ++g) {
        std::int64_t const q = (static_cast<std::int64_t>(block.z()) * a.heads + block.y()) * a.group + g;
        float const x = logits[q * a.stride + i];
        float const most = statistics[q * 2];
        float const share = statistics[q * 2 + 1];
        float const weight = expf(x - most) * share;
        if (!a.maximum) merged += weight;
        else if (!(weight <= merged)) merged = weight;
      }
      block.global(a.out)[block.z() * a.sequence_stride + block.y() * a.head_stride + i] =
          a.maximum ? merged : merged / static_cast<float>(a.group);
    }
  }
};

}  // namespace kvpolicy::gpu::detail
