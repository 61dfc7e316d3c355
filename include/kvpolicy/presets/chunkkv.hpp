// Preset chunkkv: whole chunks of the prompt, by the attention of its last queries (Liu et al., 2025, arXiv 2502.00299).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/window_attention.hpp"
#include "kvpolicy/segments/pages.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/prefill.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

struct chunkkv {
  static constexpr char const* name = "chunkkv";
  static constexpr char const* source = "whole chunks of the prompt (ChunkKV, Liu et al. 2025, arXiv 2502.00299)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  std::int32_t chunk = 10;
  std::int32_t window = 8;
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  selectors::merge reduce = selectors::merge::maximum;
  bool window_in_budget = false;
  layering layers{};
  std::int32_t after = 16;

  /// The paper's setting: a small window, whose size it does not print, attention as it is, sums over chunks, and one choice
  /// for two layers.
  static constexpr chunkkv paper() noexcept {
    return {.smooth = {}, .reduce = selectors::merge::sum, .layers = {.reuse = 2}, .after = 0};
  }
  /// The public implementation's: SnapKV's scores, means over longer chunks, the window within the budget.
  static constexpr chunkkv kvpress() noexcept {
    return {.chunk = 20,
            .window = 64,
            .smooth = {.how = smoothing::kind::average, .width = 5},
            .reduce = selectors::merge::mean,
            .window_in_budget = true,
            .after = 0};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    observation_parameters(p, visit);
    visit("chunk", p.chunk, "tokens of a chunk");
    visit("reduce", p.reduce, "of a chunk's scores: mean, sum or maximum");
    visit("window_in_budget", p.window_in_budget,
          "the window competes, as in kvpress: 1 above the best score; a share of the chunks is kept");
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "chunks' sums of attention that is not smoothed, choices shared by two layers");
    visit("kvpress", kvpress(), "its public implementation: window 64, average over 5, means over chunks of 20");
  }

  constexpr auto parts() const {
    return policy{keep{segments::pages{chunk}, pools::none{},
                       scorers::window_attention{.window = window, .smooth = smooth, .include_window = window_in_budget},
                       budgets::tokens{.count = tokens, .ratio = ratio, .of_units = window_in_budget},
                       selectors::top_of_layer{.by = reduce}, windows::tokens{.recent = window_in_budget ? 0 : window},
                       triggers::prefill{after}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<chunkkv> && preset<chunkkv>);

}  // namespace kvpolicy::presets
