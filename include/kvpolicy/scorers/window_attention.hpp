// Score: how much the prompt's last queries attended to a token and its neighbours (SnapKV, sec. 4).
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/detail/observed_queries.hpp"

namespace kvpolicy::scorers {

struct window_attention {
  static constexpr signals needs = signals::keys | signals::observation_queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;

  std::int32_t window = 8;  ///< queries
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  /// Score the window's own tokens as 1 above the largest score of the layer, instead of leaving them to the rule's window.
  bool include_window = false;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    query_window const queries = last_queries(input.prompt, window).of(input.heads, input.view.shape().group());
    auto const keys = input.keys();
    std::int64_t const before = keys.tokens - queries.tokens;
    std::int64_t const wanted = out.columns;
    expect_room(queries.tokens, before, out);
    out.columns = before;
    if (before > 0) kvpolicy::window_attention(queries, keys, smooth, out, exec);
    if (!include_window) return;
    float most = 0;
    for (std::int64_t h = 0; h < out.rows; ++h) {
      for (std::int64_t t = 0; t < before; ++t) most = std::max(most, out(h, t));
    }
    for (std::int64_t h = 0; h < out.rows; ++h) std::fill(out.row(h) + before, out.row(h) + wanted, most + 1);
  }

  /// The same with the largest of the group's query heads in place of their mean, smoothed as one. `buffer`: `[tokens]`.
  template <class Input, executor Exec>
  void score_maximum(Input const& input, table<float> out, std::span<float> buffer, Exec& exec) const {
    query_window const queries = last_queries(input.prompt, window).of(input.heads, input.view.shape().group());
    auto const keys = input.keys();
    std::int64_t const before = keys.tokens - queries.tokens;
    std::int64_t const group = queries.heads / input.heads.count;
    expect_room(queries.tokens, before, out);
    for (std::int64_t h = 0; h < out.rows && before > 0; ++h) {
      for (std::int64_t q = 0; q < group; ++q) {
        query_window one = queries;
        one.data = queries.at(0, h * group + q);
        one.heads = 1;
        float* const to = q == 0 ? out.row(h) : buffer.data();
        kvpolicy::window_attention(one, keys.of({h, 1}), {.queries = smooth.queries}, table<float>{to, 1, before, before},
                                   exec);
        for (std::int64_t t = 0; q > 0 && t < before; ++t) {
          if (!(to[t] <= out(h, t))) out(h, t) = to[t];
        }
      }
      std::span const merged = buffer.first(static_cast<std::size_t>(before));
      std::copy_n(out.row(h), before, merged.begin());
      smooth_row(merged, smooth, std::span(out.row(h), merged.size()));
    }
  }

 private:
  void expect_room(std::int64_t seen, std::int64_t before, table<float> const& out) const {
    KVPOLICY_EXPECTS((include_window ? before >= 0 : before >= out.columns) && out.columns <= out.row_stride,
                     "a window of " + std::to_string(seen) + " queries scores the " + std::to_string(before) +
                         " tokens before it, " + std::to_string(out.columns) +
                         " were asked for; protect at least as many recent tokens");
  }
};

static_assert(scorer<window_attention>);

}  // namespace kvpolicy::scorers
