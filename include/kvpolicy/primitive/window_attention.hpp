// Primitive window_attention: how much the last tokens of a prompt attended to the tokens before them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <span>

#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// How a window's attention becomes one score for each token. Neighbours are merged with stride 1, centred, `width` odd:
/// average counts the zeros that pad both ends; maximum pads with nothing.
struct smoothing {
  enum class kind : std::uint8_t { none, average, maximum };
  friend constexpr auto names_of(kind) noexcept { return std::array{"none", "average", "maximum"}; }
  kind how = kind::none;
  std::int64_t width = 1;  ///< tokens
  bool of_group = false;   ///< smooth the query group's mean, not each query head by itself
  /// How the window's queries are merged. The mean dilutes what one of many looks at; the maximum does not, and leaves out
  /// queries that have a NaN.
  group_merge queries = group_merge::mean;
};

/// One row smoothed, `of_group` aside; not in place. A neighbour at a time for all tokens, so that compilers have vectors.
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

/// scores(h, t) for the tokens t before the window, `[kv_heads, n - w]` with n = keys.tokens and w = queries.tokens:
/// attention of the w last queries, each softmax over all keys that it may see (causal, window included), then mean (or
/// maximum) over the window, then smoothed, then mean over KV head h's query heads (SnapKV, sec. 4; reading of kvpress).
/// Needs 1 <= w <= n. O(w n q_heads head_dim); exponentials in fp32, sums of at least fp32.
template <class Memory, class Exec>
void window_attention(query_window const& queries, basic_rows<Memory> const& keys, smoothing smooth, table<float> scores,
                      Exec& exec) {
  exec.window_attention(queries, keys, smooth, scores);
}

/// scores(h, t) = mean over KV head h's query heads and over the queries that see token t of the softmax weight that it gets;
/// `[kv_heads, n]`, from the last w queries of the n tokens (H2O's accumulated attention where w = n).
/// Needs 1 <= w <= n. O(w n q_heads head_dim).
template <class Memory, class Exec>
void seen_attention(query_window const& queries, basic_rows<Memory> const& keys, table<float> scores, Exec& exec) {
  exec.seen_attention(queries, keys, scores);
}

/// How much the queries right behind a token want its key: scores(h, m - first) for tokens m in [first, last) = mean over KV
/// head h's query heads and the queries of tokens (m, m + local] that are given of q.k_m, unscaled; 0 where there are none.
/// `[kv_heads, last - first]`; `queries` are those of tokens [begin, begin + queries.tokens); where `positions` is given, token
/// m stands at positions[m] among them. O((last - first + w) q_heads head_dim).
template <class Memory, class Exec>
void following_queries(query_window const& queries, std::int64_t begin, basic_rows<Memory> const& keys, std::int64_t first,
                       std::int64_t last, std::int64_t local, std::int32_t const* positions, table<float> scores, Exec& exec) {
  exec.following_queries(queries, begin, keys, first, last, local, positions, scores);
}

}  // namespace kvpolicy
