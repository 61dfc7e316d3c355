// Scorer last_attention: scores a token by the attention that the last query pays (TOVA).
#pragma once

#include <span>

#include "kvpolicy/scorers/current_attention.hpp"
#include "kvpolicy/scorers/window_attention.hpp"

namespace kvpolicy::scorers {

/// Scores a token by the attention that the last query pays to it, or to its neighbours too (TOVA, Oren et al. 2024, arXiv
/// 2401.06104). At prefill the prompt's last `window` queries count, while decoding the current one.
struct last_attention {
  static constexpr signals needs = signals::keys | signals::observation_queries | signals::queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;
  static constexpr bool after_attention = true;

  std::int32_t window = 1;  ///< queries at the prompt's end that count; protect as many tokens
  smoothing smooth{};       ///< smooths the weights before a selection, not before an eviction

  using memory = current_attention::memory;
  memory start(cache_shape const& shape) const { return current_attention{}.start(shape); }

  /// While decoding, the softmax is over the scored tokens only.
  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    if (input.prompt != nullptr) return window_attention{.window = window, .smooth = smooth}.score(input, out, exec);
    current_attention{.smooth = smooth}.score(input, out, exec);
  }

  template <class Input, executor Exec>
  void score_kept(Input const& input, std::span<range_list const> lists, table<float> out, Exec& exec) const {
    list_attention(input.queries, input.keys(), lists, out, exec);
  }
};

static_assert(evicting_scorer<last_attention>);

}  // namespace kvpolicy::scorers
