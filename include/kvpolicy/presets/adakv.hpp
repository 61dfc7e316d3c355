// Preset adakv: SnapKV's scores, a layer's budget shared out by score over its heads (Feng et al., 2024, arXiv 2407.11550).
#pragma once

#include "kvpolicy/budgets/adaptive.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/presets/snapkv.hpp"

namespace kvpolicy::presets {

struct adakv {
  static constexpr char const* name = "adakv";
  static constexpr char const* source =
      "snapkv with a layer's budget shared out over its heads (Feng et al. 2024, arXiv 2407.11550)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  std::int32_t window = 8;
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  double alpha = .2;
  layering layers{};
  std::int32_t after = 16;

  /// The setting of the paper's public implementations.
  static constexpr adakv paper() noexcept {
    return {.window = 64, .smooth = {.how = smoothing::kind::average, .width = 5}, .after = 0};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    observation_parameters(p, visit);
    visit("alpha", p.alpha, "share of the budget that each head is sure of");
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
