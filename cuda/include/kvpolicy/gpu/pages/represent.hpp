// Blocks by the keys of their representatives (InfLLM): the open block's queries, who represents a block that is full, and
// scores summed over heads.
#pragma once

#include "kvpolicy/gpu/base/radix.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/pooling/rope_reader.hpp"

namespace kvpolicy::gpu::detail {

/// The current token's queries, mean over the group: kept with the open block's, and by themselves, where keys are turned as if
/// they stood `distance` tokens behind all of them.
struct block_queries_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "block_queries";
  struct arguments {
    vector_rows queries;
    std::int32_t group = 1;
    std::int32_t heads = 1;
    std::int32_t head_dim = 0;
    std::int32_t block_size = 1;
    per_sequence tokens;
    buffer<float> of_block;  ///< `[sequences, kv_heads, block_size, head_dim]`
    buffer<float> current;   ///< `[sequences, kv_heads, head_dim]`
    batch_rope_angles rotated;
    std::int64_t distance = 0;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const tokens = a.tokens.of(block, block.y());
    if (tokens == 0) return;
    std::int64_t const row = static_cast<std::int64_t>(block.y()) * a.heads + block.x();
    auto const mean = [&](std::int32_t d) {
      float sum = 0;
      for (std::int32_t g = 0; g < a.group; ++g) {
        sum +=
            get(block, a.queries, a.queries.begin(block, block.y()) + (block.x() * a.group + g) * a.queries.head_stride + d) /
            static_cast<float>(a.group);
      }
      return sum;
    };
    auto const rope = a.rotated.in(block);
    for (std::int32_t d = static_cast<std::int32_t>(block.thread()); d < a.head_dim; d += B::threads) {
      float const own = mean(d);
      block.global(a.of_block)[(row * a.block_size + (tokens - 1) % a.block_size) * a.head_dim + d] = own;
      float far = own;
      if (d < 2 * rope.pairs) far = rope.moved(d, own, mean(rope.partner(d)), tokens - 1, a.distance);
      block.global(a.current)[row * a.head_dim + d] = far;
    }
  }
};

/// Where the current token fills its block: the mean key of the `count` tokens that the block's queries behind them want most.
/// One block a head and sequence.
template <element_type E>
struct represent_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "represent";
  static constexpr int longest_block = 1024;  ///< tokens
  struct arguments {
    batch_rows keys;
    buffer<float const> queries;  ///< `[sequences, kv_heads, block_size, head_dim]`
    std::int32_t block_size = 1;
    std::int32_t count = 1;
    std::int32_t local = 1;
    per_sequence tokens;
    buffer<stored<E>> vectors;  ///< `[sequences, kv_heads, stride, head_dim]`
    std::int64_t stride = 0;
    batch_rope_angles rotated;
  };
  template <class B>
  struct shared {
    radix_shared<B> radix;
    typename B::template array<float, longest_block> scores;
    typename B::template array<std::int32_t, longest_block> chosen;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const tokens = a.tokens.of(block, block.y());
    if (tokens == 0 || tokens % a.block_size != 0) return;
    std::int64_t const row = static_cast<std::int64_t>(block.y()) * a.keys.heads + block.x();
    std::int64_t const first = tokens - a.block_size;
    row_reader<E, B> const keys(block, a.keys, block.y());
    auto const queries = block.global(a.queries);
    auto const tile = block.tile();
    auto const thread = static_cast<std::int32_t>(block.thread());
    row_lanes const share(a.keys.parts());
    std::int32_t const part = static_cast<std::int32_t>(tile.lane()) & (share.lanes - 1);
    std::int32_t const at_once = static_cast<std::int32_t>(B::threads) / share.lanes;
    for (std::int32_t base = 0; base < a.block_size; base += at_once) {
      std::int32_t const m = base + thread / share.lanes;
      float key[8] = {};
      float sum = 0;
      std::int32_t const behind = m + 1 + a.local < a.block_size ? m + 1 + a.local : a.block_size;
      if (m < a.block_size && part < a.keys.parts()) {
        keys.load(keys.offset(block.x(), first + m), part, key);
        for (std::int32_t t = m + 1; t < behind; ++t) {
          KVPOLICY_UNROLL
          for (int c = 0; c < 8; ++c) {
            if (part * 8 + c >= a.keys.head_dim) continue;
            float const query = queries[(row * a.block_size + t) * a.keys.head_dim + part * 8 + c];
            sum += query * key[c];
          }
        }
      }
      sum = lane_sum(tile, sum, share.lanes);
      if (m < a.block_size && part == 0) s.scores[m] = behind > m + 1 ? sum / static_cast<float>(behind - m - 1) : 0;
    }
    block.sync();
    auto const key_at = [&](std::int32_t m) {
      float const score = s.scores[m];
      return sortable_key(score);
    };
    radix_threshold const threshold = select_threshold(block, s.radix, a.count, [&](auto visit) {
      for (std::int32_t m = thread; m < a.block_size; m += B::threads) visit(key_at(m), 1);
    });
    std::int32_t written = 0;
    std::int32_t ties_before = 0;
    for (std::int32_t base = 0; base < a.block_size; base += B::threads) {
      std::int32_t const m = base + thread;
      std::uint32_t key = 0;
      if (m < a.block_size) key = key_at(m);
      bool const tie = m < a.block_size && key == threshold.key;
      std::int32_t all_ties = 0;
      std::int32_t const ties = ties_before + block.exclusive_sum(s.radix.ties, tie ? 1 : 0, all_ties);
      bool const taken = m < a.block_size && (key > threshold.key || (tie && ties < threshold.ties));
      std::int32_t all = 0;
      std::int32_t const to = written + block.exclusive_sum(s.radix.scan, taken ? 1 : 0, all);
      if (taken) s.chosen[to] = m;
      written += all;
      ties_before += all_ties;
      block.sync();
    }
    auto const rope = a.rotated.in(block);
    for (std::int32_t p = thread; p < a.keys.parts(); p += B::threads) {
      float mean[8] = {};
      for (std::int32_t i = 0; i < a.count; ++i) {
        std::int32_t const m = s.chosen[i];
        float x[8];
        std::int64_t const offset = keys.offset(block.x(), first + m);
        rope.load(keys, offset, keys.at(block.x(), first + m), p, x);
        KVPOLICY_UNROLL
        for (int c = 0; c < 8; ++c) mean[c] = i == 0 ? x[c] : mean[c] + (x[c] - mean[c]) / static_cast<float>(i + 1);
      }
      KVPOLICY_UNROLL
      for (int c = 0; c < 8; ++c) {
        if (p * 8 + c >= a.keys.head_dim) continue;
        block.global(a.vectors)[(row * a.stride + first / a.block_size) * a.keys.head_dim + p * 8 + c] = narrowed<E>(mean[c]);
      }
    }
  }
};

/// out(s, u): the scores of a layer's heads merged, for a list that they share.
struct merge_heads_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "merge_heads";
  struct arguments {
    buffer<float const> scores;  ///< `[sequences, kv_heads, stride]`
    std::int64_t stride = 0;
    std::int32_t heads = 1;
    bool maximum = false;  ///< not their sum
    per_sequence count;
    buffer<float> out;  ///< `[sequences, stride]`
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const u = index_in_grid(block);
    if (u >= a.count.of(block, block.y())) return;
    auto const scores = block.global(a.scores);
    float merged = 0;
    for (std::int32_t h = 0; h < a.heads; ++h) {
      float const one = scores[(static_cast<std::int64_t>(block.y()) * a.heads + h) * a.stride + u];
      if (h == 0) merged = one;
      else if (!a.maximum) merged += one;
      else if (!(one <= merged)) merged = one;
    }
    block.global(a.out)[block.y() * a.stride + u] = merged;
  }
};

}  // namespace kvpolicy::gpu::detail
