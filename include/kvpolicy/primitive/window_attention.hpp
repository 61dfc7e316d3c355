// Primitives window_attention, seen_attention and following_queries: how much a prompt's queries attend to its tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "kvpolicy/detail/host_rows.hpp"
#include "kvpolicy/primitive/score.hpp"

namespace kvpolicy {

/// How a window's attention becomes one score for each token. Each token's weight is merged with its neighbours', centred.
/// The average counts the zeros that pad both ends. The maximum has no padding.
struct smoothing {
  /// How neighbours are merged.
  enum class kind : std::uint8_t { none, average, maximum };
  friend constexpr auto names_of(kind) noexcept { return std::array{"none", "average", "maximum"}; }
  kind how = kind::none;
  std::int64_t width = 1;  ///< tokens that are merged, odd
  /// Merges the KV head's query heads before the smoothing; the maximum ignores NaN. None: each query head is smoothed, and
  /// then their mean is taken.
  std::optional<group_merge> of_group{};
  /// How the window's queries are merged. The mean dilutes a weight that one query of many gives. The maximum does not, and
  /// ignores queries that have a NaN.
  group_merge queries = group_merge::mean;
};

/// Smooths one row by `how` and `width`. The loops go over all tokens for each neighbour, so that compilers vectorise them.
/// @param row  `[tokens]`
/// @param smooth  kind and width; `of_group` and `queries` are not used
/// @param out  `[tokens]`, not the memory of `row`
inline void smooth_row(std::span<float const> row, smoothing smooth, std::span<float> out) noexcept {
  auto const tokens = static_cast<std::int64_t>(row.size());
  if (smooth.how == smoothing::kind::none) {
    std::copy_n(row.begin(), tokens, out.begin());
    return;
  }
  bool const maximum = smooth.how == smoothing::kind::maximum;
  std::fill_n(out.begin(), tokens, maximum ? -std::numeric_limits<float>::infinity() : 0);
  std::int64_t const reach = std::min(smooth.width / 2, tokens);
  for (std::int64_t offset = -reach; offset <= reach; ++offset) {
    float const* const from = row.data() + std::max<std::int64_t>(0, offset);
    float* const to = out.data() + std::max<std::int64_t>(0, -offset);
    std::int64_t const count = tokens - std::abs(offset);
    if (maximum) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] <= to[i] ? to[i] : from[i];
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
    }
  }
  for (std::int64_t t = 0; !maximum && t < tokens; ++t) out[static_cast<std::size_t>(t)] /= static_cast<float>(smooth.width);
}

/// Computes the attention of a prompt's last w queries to each token before them (SnapKV, section 4, as kvpress reads it).
/// Each query's softmax is over all keys that it may see: causal, window included. Then follow the mean (or maximum) over the
/// window, the smoothing, and the mean over the KV head's query heads, or the merge that `of_group` names before the smoothing.
/// Needs 1 <= w <= n.
/// O(w n q_heads head_dim). Exponentials are fp32, sums at least fp32.
/// @param queries  of the last w tokens, `[w, q_heads, head_dim]`
/// @param keys  `[kv_heads, n, head_dim]`
/// @param smooth  how queries, query heads and neighbours are merged
/// @param scores  `[kv_heads, n - w]`
/// @param exec  the executor
template <class Memory, class Exec>
void window_attention(query_window const& queries, basic_rows<Memory> const& keys, smoothing smooth, table<float> scores,
                      Exec& exec) {
  exec.window_attention(queries, keys, smooth, scores);
}

namespace host {
inline void seen_attention(query_window const& queries, rows const& keys, table<float> scores) {
  std::int64_t const before = keys.tokens - queries.tokens;
  std::int64_t const group = queries.heads / keys.heads;
  std::vector<float> key(static_cast<std::size_t>(keys.head_dim));
  std::vector<double> weights(static_cast<std::size_t>(keys.tokens));
  std::vector<double> sums(weights.size());
  for (std::int64_t h = 0; h < keys.heads; ++h) {
    std::ranges::fill(sums, 0.0);
    for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
      for (std::int64_t w = 0; w < queries.tokens; ++w) {
        std::span const seen = std::span(weights).first(static_cast<std::size_t>(before + w + 1));
        softmax_row(queries.at(w, q), queries.scale, keys, {h}, seen, key);
        for (std::size_t t = 0; t < seen.size(); ++t) sums[t] += seen[t] / static_cast<double>(group);
      }
    }
    for (std::int64_t t = 0; t < keys.tokens; ++t) {
      auto const see_it = static_cast<double>(std::min(queries.tokens, keys.tokens - t));
      scores(h, t) = static_cast<float>(sums[static_cast<std::size_t>(t)] / see_it);
    }
  }
}
}  // namespace host

/// Computes the mean softmax weight of each token, over the queries that see it and the KV head's query heads. With w = n this
/// is H2O's accumulated attention. Needs 1 <= w <= n. O(w n q_heads head_dim).
/// @param queries  of the last w tokens, `[w, q_heads, head_dim]`
/// @param keys  `[kv_heads, n, head_dim]`
/// @param scores  `[kv_heads, n]`
/// @param exec  the executor
template <class Memory, class Exec>
void seen_attention(query_window const& queries, basic_rows<Memory> const& keys, table<float> scores, Exec& exec) {
  if constexpr (requires { exec.seen_attention(queries, keys, scores); }) exec.seen_attention(queries, keys, scores);
  else if constexpr (on_host<Exec>) host::seen_attention(queries, keys, scores);
  else
    static_assert(on_host<Exec>, "the executor has no seen_attention(queries, keys, scores), and its rows are not on the host");
}

namespace host {
inline void following_queries(query_window const& queries, std::int64_t begin, rows const& keys, std::int64_t first,
                              std::int64_t last, std::int64_t local, std::int32_t const* positions, table<float> scores) {
  std::vector<float> buffer(static_cast<std::size_t>(keys.head_dim));
  std::int64_t const group = queries.heads / keys.heads;
  for (std::int64_t h = 0; h < keys.heads; ++h) {
    for (std::int64_t m = first; m < last; ++m) {
      keys.load({h}, {m}, buffer);
      std::int64_t const next = 1 + (positions == nullptr ? m : positions[m]);
      std::int64_t const from = std::max(next, begin);
      std::int64_t const to = std::min(next + local, begin + queries.tokens);
      double sum = 0;
      for (std::int64_t t = from; t < to; ++t) {
        for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
          sum += dot(std::span(queries.at(t - begin, q), buffer.size()), buffer);
        }
      }
      scores(h, m - first) = static_cast<float>(from < to ? sum / static_cast<double>((to - from) * group) : 0);
    }
  }
}
}  // namespace host

/// Computes the mean unscaled q.k of each token's key and the queries right after it, over the KV head's query heads. Token m
/// gets the queries of tokens m + 1 to m + local, as far as these are given. Without any, its score is 0.
/// O((last - first + w) q_heads head_dim).
/// @param queries  `[w, q_heads, head_dim]`, of tokens [begin, begin + w)
/// @param begin  token of the first query
/// @param keys  `[kv_heads, tokens, head_dim]`
/// @param first, last  rows [first, last) are scored
/// @param local  how many following queries count
/// @param positions  `[last]`, or null: row m is token positions[m], in the numbering of `begin`
/// @param scores  `[kv_heads, last - first]`
/// @param exec  the executor
template <class Memory, class Exec>
void following_queries(query_window const& queries, std::int64_t begin, basic_rows<Memory> const& keys, std::int64_t first,
                       std::int64_t last, std::int64_t local, std::int32_t const* positions, table<float> scores, Exec& exec) {
  if constexpr (requires { exec.following_queries(queries, begin, keys, first, last, local, positions, scores); })
    exec.following_queries(queries, begin, keys, first, last, local, positions, scores);
  else if constexpr (on_host<Exec>) host::following_queries(queries, begin, keys, first, last, local, positions, scores);
  else
    static_assert(on_host<Exec>,
                  "the executor has no following_queries(queries, begin, keys, first, last, local, positions, scores), and its "
                  "rows are not on the host");
}

}  // namespace kvpolicy
