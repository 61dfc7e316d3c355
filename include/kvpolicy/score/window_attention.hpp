// Score: how much the prompt's last queries attended to a token and its neighbours (SnapKV, sec. 4).
#pragma once

#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::score {

struct window_attention {
  static constexpr signals needs = signals::keys | signals::window_queries;
  static constexpr scope how_fine = scope::head;

  std::int32_t window = 8;  ///< queries; the selector's window must protect as many tokens
  smoothing smooth{.how = smoothing::kind::maximum, .width = 31};

  /// Reads input.window, the last queries; the view's rows must not reach past them. Throws unsupported without queries.
  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    query_window queries = input.window;
    if (queries.tokens < 1) {
      throw unsupported(
          "window attention needs the prompt's last queries, and none were observed: prefill with the policy attached");
    }
    std::int64_t const extra = queries.tokens - window;
    if (extra > 0) {
      queries.data += extra * queries.token_stride;
      queries.tokens = window;
    }
    auto keys = input.view.keys(input.layer);
    keys.tokens = input.tokens;
    std::int64_t const before = keys.tokens - queries.tokens;
    KVPOLICY_EXPECTS(before >= out.columns && before <= out.row_stride,
                     "a window of " + std::to_string(queries.tokens) + " queries scores the " + std::to_string(before) +
                         " tokens before it, " + std::to_string(out.columns) +
                         " were asked for; protect at least as many recent tokens");
    out.columns = before;
    kvpolicy::window_attention(queries, keys, smooth, out, exec);
  }
};

static_assert(scorer<window_attention>);

}  // namespace kvpolicy::score
