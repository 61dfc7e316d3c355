// Scorer window_attention: scores a token by the attention of the prompt's last queries (SnapKV, sec. 4).
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/detail/observed_queries.hpp"

namespace kvpolicy::scorers {

/// Scores a token by the attention that the prompt's last queries pay to it and its neighbours (SnapKV, sec. 4).
/// The window's own tokens get no score, so the rule's window must protect at least as many recent tokens.
struct window_attention {
  static constexpr signals needs = signals::keys | signals::observation_queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;

  std::int32_t window = 8;  ///< queries at the prompt's end that observe
  /// Smooths the attention over neighbouring tokens and merges the queries.
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  /// Scores the window's own tokens too, 1 above the largest score of the layer; the rule's window need not protect them then.
  bool include_window = false;
  /// Each head's score is the sum over all heads of the layer, so that all retain the same tokens (SentenceKV, sec. 4.1).
  bool all_heads = false;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  template <class Window>
  void check(Window const& of_rule, cache_shape const& shape) const {
    if (!include_window) check_protected(of_rule, window, shape);
  }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    query_window const queries = last_queries(input.prompt, window).of(input.heads, input.view.shape().group());
    auto const keys = input.keys();
    std::int64_t const before = keys.tokens - queries.tokens;
    std::int64_t const wanted = out.columns;
    KVPOLICY_EXPECTS((include_window ? before >= 0 : before >= out.columns) && out.columns <= out.row_stride,
                     "a window of " + std::to_string(queries.tokens) + " queries scores only the " + std::to_string(before) +
                         " tokens before it, but " + std::to_string(out.columns) +
                         " need scores; let the rule's window protect as many recent tokens as it has queries");
    out.columns = before;
    if (before > 0) kvpolicy::window_attention(queries, keys, smooth, out, exec);
    if (all_heads) {
      if (out.rows != input.view.shape().kv_heads) {
        throw unsupported("scores are summed over all heads of a layer, and the rows of its heads are not the same tokens");
      }
      for (std::int64_t t = 0; t < before; ++t) {
        for (std::int64_t h = 1; h < out.rows; ++h) out(0, t) += out(h, t);
        for (std::int64_t h = 1; h < out.rows; ++h) out(h, t) = out(0, t);
      }
    }
    if (!include_window) return;
    float most = 0;
    for (std::int64_t h = 0; h < out.rows; ++h) {
      for (std::int64_t t = 0; t < before; ++t) most = std::max(most, out(h, t));
    }
    for (std::int64_t h = 0; h < out.rows; ++h) std::fill(out.row(h) + before, out.row(h) + wanted, most + 1);
  }
};

static_assert(scorer<window_attention>);

}  // namespace kvpolicy::scorers
