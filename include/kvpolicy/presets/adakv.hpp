// Preset adakv: SnapKV's scores, a layer's budget shared out by score over its heads (Feng et al., 2024, arXiv 2407.11550).
#pragma once

#include "kvpolicy/budget/adaptive.hpp"
#include "kvpolicy/presets/snapkv.hpp"

namespace kvpolicy::presets {

struct adakv {
  std::int32_t tokens = 512;      ///< kept of the prompt for each KV head, mean over the layer's heads
  std::optional<double> ratio{};  ///< fraction removed, in place of `tokens`
  std::int32_t window = 8;        ///< observing queries, always kept
  smoothing smooth{.how = smoothing::kind::maximum, .width = 31};
  double alpha = .2;  ///< share of the budget that each head is sure of
  layering layers{};

  /// The setting of the paper's public implementations.
  static constexpr adakv paper() noexcept { return {.window = 64, .smooth = {.how = smoothing::kind::average, .width = 5}}; }

  constexpr auto parts() const {
    return policy{keep{segment::tokens{}, pool::none{}, score::window_attention{.window = window, .smooth = smooth},
                       budget::adaptive{.each = {.count = tokens, .ratio = ratio}, .safe = alpha}, select::top{},
                       window::tokens{.recent = window}, trigger::prefill{}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<adakv> && preset<adakv>);

}  // namespace kvpolicy::presets
