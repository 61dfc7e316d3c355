// Preset adakv: SnapKV's scores, with a layer's budget shared out over its heads (AdaKV).
#pragma once

#include "kvpolicy/budgets/adaptive.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/presets/snapkv.hpp"

namespace kvpolicy::presets {

/// Keeps tokens by SnapKV's scores, and shares a layer's budget out over its heads by score (Feng et al. 2024, arXiv
/// 2407.11550).
struct adakv {
  static constexpr char const* name = "adakv";
  static constexpr char const* source =
      "snapkv with a layer's budget shared out over its heads (Feng et al. 2024, arXiv 2407.11550)";

  std::int32_t tokens = 512;      ///< tokens of the prompt that a KV head keeps, mean over the layer's heads, window included
  std::optional<double> ratio{};  ///< fraction of the prompt's tokens removed, 0 to below 1, in place of `tokens`
  std::int32_t window = 8;        ///< queries of the observation window, whose tokens are always kept
  /// Smoothing of the attention over neighbouring tokens; `width` is the paper's kernel size.
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  double alpha = .2;        ///< alpha, share of the budget that each head spends on its own best tokens
  layering layers{};        ///< first layers that keep everything, and layers that share one choice
  std::int32_t after = 16;  ///< tokens of the answer that the choice waits for; the paper: 0

  /// Returns the setting of the paper's public implementations.
  static constexpr adakv paper() noexcept {
    return {.window = 64, .smooth = {.how = smoothing::kind::average, .width = 5}, .after = 0};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    observation_parameters(p, visit);
    visit("alpha", p.alpha, "share of the budget that every head gets");
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "the published setting: window 64, average over 5");
  }

  constexpr auto parts() const {
    return policy{keep{segments::tokens{}, pools::none{}, scorers::window_attention{.window = window, .smooth = smooth},
                       budgets::adaptive{.each = {.count = tokens, .ratio = ratio}, .safe = alpha}, selectors::top{},
                       windows::tokens{.recent = window}, triggers::prefill{after}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<adakv> && preset<adakv>);

}  // namespace kvpolicy::presets
