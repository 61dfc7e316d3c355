// What a prompt's last queries attend to, on tensor cores: a warp holds up to 32 queries of a query head, and takes keys by
// eights.
#pragma once

#include <cmath>
#include <type_traits>

#include "kvpolicy/gpu/attention/prompt_attention.hpp"
#include "kvpolicy/gpu/base/tensor_queries.hpp"

namespace kvpolicy::gpu::detail {

/// How many tiles of 8 queries a warp holds: more would not fit into registers.
template <int Chunks>
inline constexpr int window_tiles = Chunks > 4 ? 2 : 4;

/// Some of a window's queries of one query head, in tiles of 8, and their logits in base 2.
template <element_type E, int Chunks, class B>
struct window_rows {
  static constexpr int tiles = window_tiles<Chunks>;
  static constexpr std::int32_t most = 8 * tiles;
  using raw = typename row_reader<E, B>::raw;

  tensor_queries<E, Chunks> queries[tiles];
  std::int32_t count = 0;  ///< queries that are there
  std::int64_t seen = 0;   ///< keys that the first of them sees; each sees one more than the one before

  /// Queries [first, first + most) of a query head. Collective.
  KVPOLICY_KERNEL void load(B& block, prompt_attention const& a, std::int64_t q_head, std::int64_t first) {
    count = static_cast<std::int32_t>(a.window - first < most ? a.window - first : most);
    seen = a.tokens - a.window + first + 1;
    auto const lane = static_cast<std::int32_t>(block.tile().lane());
    KVPOLICY_UNROLL
    for (int i = 0; i < tiles; ++i) {
      if (8 * i >= count) break;
      std::int32_t const mine = 8 * i + (lane >> 2);
      queries[i].load(block, a.queries, (first + mine) * a.queries.token_stride + q_head * a.queries.head_stride, mine < count,
                      a.scale * 1.44269504f);
    }
  }

  /// Calls `each(tile, products)` with those of query 8 tile + l / 4 and keys key + 2 (l % 4) and the next, over keys [key,
  /// last) that some of the queries see; then `done(key)`. Logits are the products times queries[tile].unit. Collective.
  template <class Each, class Done>
  KVPOLICY_KERNEL void for_keys(B& block, batch_rows const& rows, std::int64_t key, std::int64_t last, Each each,
                                Done done) const {
    auto const tile = block.tile();
    auto const g = static_cast<std::int32_t>(tile.lane()) >> 2;
    auto const t = static_cast<std::int32_t>(tile.lane()) & 3;
    row_reader<E, B> const keys(block, rows, 0);
    if (last > seen + count - 1) last = seen + count - 1;
    // Behind the end the last key is read again, and nobody sees it.
    auto const place_of = [&](std::int64_t from) { return keys.offset(block.y(), from + g < last ? from + g : last - 1); };
    std::int64_t next = key < last ? place_of(key) : 0;
    auto const take_eight = [&](auto all_seen) {
      raw row[Chunks];
      KVPOLICY_UNROLL
      for (int c = 0; c < Chunks; ++c) row[c] = keys.load_raw(next, t + 4 * c);
      next = place_of(key + 8);
      KVPOLICY_UNROLL
      for (int i = 0; i < tiles; ++i) {
        if (8 * i >= count) break;
        float product[4] = {};
        queries[i].multiply(tile, row, product);
        float sums[2] = {product[0] + product[2], product[1] + product[3]};
        if constexpr (!decltype(all_seen)::value) {
          std::int64_t const end = seen + 8 * i + g < last ? seen + 8 * i + g : last;
          KVPOLICY_UNROLL
          for (int k = 0; k < 2; ++k) {
            if (key + 2 * t + k >= end) sums[k] = -__builtin_huge_valf();
          }
        }
        each(i, sums);
      }
      done(key);
    };
    for (std::int64_t const all = seen < last ? seen : last; key + 8 <= all; key += 8) take_eight(std::true_type{});
    for (; key < last; key += 8) take_eight(std::false_type{});
  }
};

/// As window_statistics_body, for keys of 32 Chunks halves.
template <element_type E, int Chunks>
struct window_statistics_tensor_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "window_statistics_tensor";
  static constexpr std::int64_t queries = 8 * window_tiles<Chunks>;  ///< of a warp
  struct arguments : window_statistics_body<E>::arguments {          // splits are of a multiple of 8 keys
    std::int32_t parts = 1;                                          ///< of a query head: groups of `queries`
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    using rows_of = window_rows<E, Chunks, B>;
    auto const tile = block.tile();
    std::int32_t const item = static_cast<std::int32_t>(block.x() * (threads / 32) + tile.index());
    std::int32_t const q = item / a.parts;
    if (q >= a.what.group) return;
    std::int64_t const first_query = (item - q * a.parts) * std::int64_t{rows_of::most};
    std::int64_t const first = block.z() * a.keys_of_split;
    std::int64_t const last = first + a.keys_of_split < a.what.tokens ? first + a.keys_of_split : a.what.tokens;
    rows_of rows;
    rows.load(block, a.what, static_cast<std::int64_t>(block.y()) * a.what.group + q, first_query);
    softmax_state<normal_powers_of_two> states[rows_of::tiles];
    rows.for_keys(
        block, a.what.keys, first, last,
        [&](int i, float const(&products)[2]) {
          states[i].add({products[0] * rows.queries[i].unit, products[1] * rows.queries[i].unit});
        },
        [](std::int64_t) {});
    auto const statistics = block.global(a.statistics);
    KVPOLICY_UNROLL
    for (int i = 0; i < rows_of::tiles; ++i) {
      KVPOLICY_UNROLL
      for (unsigned mask = 1; mask < 4; mask *= 2) states[i].merge_lane(tile, mask);
      std::int32_t const query = 8 * i + (static_cast<std::int32_t>(tile.lane()) >> 2);
      if (tile.lane() % 4 == 0 && query < rows.count) {
        std::int64_t const row = block.y() * a.what.rows() + q * a.what.window + first_query + query;
        statistics[(row * a.splits + block.z()) * 2] =
            states[i].most * .693147181f;  // in base e, as merge_statistics_body takes them
        statistics[(row * a.splits + block.z()) * 2 + 1] = states[i].total;
      }
    }
  }
};

/// As window_sums_body, for keys of 32 Chunks halves.
template <element_type E, int Chunks>
struct window_sums_tensor_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "window_sums_tensor";
  struct arguments : window_sums_body<E>::arguments {
    std::int64_t keys_of_split = 0;  ///< a multiple of 8
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    using rows_of = window_rows<E, Chunks, B>;
    auto const tile = block.tile();
    auto const q = static_cast<std::int32_t>(block.x() * (threads / 32) + tile.index());
    if (q >= a.what.group) return;
    if (a.largest) sum_up<rows_of>(block, a, q, [](float x, float y) { return fmaxf(x, y); });
    else sum_up<rows_of>(block, a, q, [](float x, float y) { return x + y; });
  }

 private:
  /// Of query head q of the block's KV head.
  template <class Rows, class B, class Merge>
  KVPOLICY_KERNEL static void sum_up(B& block, arguments const& a, std::int32_t q, Merge merge) {
    auto const tile = block.tile();
    auto const g = static_cast<std::int32_t>(tile.lane()) >> 2;
    std::int64_t const q_head = static_cast<std::int64_t>(block.y()) * a.what.group + q;
    std::int64_t const first = block.z() * a.keys_of_split;
    std::int64_t const last = first + a.keys_of_split < a.columns ? first + a.keys_of_split : a.columns;
    auto const statistics = block.global(a.statistics);
    auto const sums = block.global(a.sums);
    // The newest queries first: they see all keys, and the others add to what they wrote.
    std::int64_t const newest = (a.what.window - 1) / Rows::most * Rows::most;
    for (std::int64_t query = newest; query >= 0; query -= Rows::most) {
      Rows rows;
      rows.load(block, a.what, q_head, query);
      float total[Rows::tiles];  // of a query's weights, as a logit
      KVPOLICY_UNROLL
      for (int i = 0; i < Rows::tiles; ++i) {
        total[i] = __builtin_huge_valf();
        if (8 * i + g >= rows.count) continue;
        std::int64_t const row = block.y() * a.what.rows() + q * a.what.window + query + 8 * i + g;
        float const most = statistics[row * 2];
        float const share = statistics[row * 2 + 1];
        total[i] = most * 1.44269504f - log2f(share);
      }
      float sum[2] = {};
      rows.for_keys(
          block, a.what.keys, first, last,
          [&](int i, float const(&products)[2]) {
            KVPOLICY_UNROLL
            for (int k = 0; k < 2; ++k) sum[k] = merge(sum[k], power_of_two(products[k] * rows.queries[i].unit - total[i]));
          },
          [&](std::int64_t key) {
            KVPOLICY_UNROLL
            for (int k = 0; k < 2; ++k) {
              KVPOLICY_UNROLL
              for (unsigned mask = 4; mask < 32; mask *= 2) sum[k] = merge(sum[k], tile.shfl_xor(sum[k], mask));
              std::int64_t const column = key + 2 * tile.lane() + k;
              if (tile.lane() < 4 && column < last) {
                if (query < newest) {
                  float const before = sums[q_head * a.stride + column];
                  sum[k] = merge(sum[k], before);
                }
                sums[q_head * a.stride + column] = sum[k];
              }
              sum[k] = 0;
            }
          });
    }
  }
};

}  // namespace kvpolicy::gpu::detail
