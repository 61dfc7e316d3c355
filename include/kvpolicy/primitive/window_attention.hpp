// Primitives window_attention, seen_attention and following_queries: how much a prompt's queries attend to its tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <optional>
#include <span>

#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/view.hpp"

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

/// Computes the mean softmax weight of each token, over the queries that see it and the KV head's query heads. With w = n this
/// is H2O's accumulated attention. Needs 1 <= w <= n. O(w n q_heads head_dim).
/// @param queries  of the last w tokens, `[w, q_heads, head_dim]`
/// @param keys  `[kv_heads, n, head_dim]`
/// @param scores  `[kv_heads, n]`
/// @param exec  the executor
template <class Memory, class Exec>
void seen_attention(query_window const& queries, basic_rows<Memory> const& keys, table<float> scores, Exec& exec) {
  exec.seen_attention(queries, keys, scores);
}

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
  exec.following_queries(queries, begin, keys, first, last, local, positions, scores);
}

}  // namespace kvpolicy
