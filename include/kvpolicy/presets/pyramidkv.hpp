// Preset pyramidkv: SnapKV's scores, with more tokens for early layers than for late layers (PyramidKV).
#pragma once

#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/presets/snapkv.hpp"

namespace kvpolicy::presets {

/// Keeps tokens by SnapKV's scores, with more tokens for early layers than for late layers (Cai et al. 2024, arXiv 2406.02069).
struct pyramidkv {
  static constexpr char const* name = "pyramidkv";
  static constexpr char const* source = "snapkv with more tokens for early layers (Cai et al. 2024, arXiv 2406.02069)";

  std::int32_t tokens = 512;      ///< tokens of the prompt that each KV head keeps, mean over layers, window included
  std::optional<double> ratio{};  ///< fraction of the prompt's tokens removed, 0 to below 1, in place of `tokens`
  std::int32_t window = 8;        ///< queries of the observation window, whose tokens are always kept
  /// Smoothing of the attention over neighbouring tokens; `width` is the paper's kernel size.
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  double beta = 20;  ///< at least 1: beside the window, layer 0 gets 2 - 1/beta of the mean, the last 1/beta; 0: all alike
  budgets::taper_rule rule = budgets::taper_rule::authors;  ///< the authors' arithmetic, or kvpress's
  layering layers{};        ///< first layers that keep everything, and layers that share one choice
  std::int32_t after = 16;  ///< tokens of the answer that the choice waits for; the paper: 0

  /// Returns the setting of the authors' code.
  static constexpr pyramidkv paper() noexcept {
    return {.window = 64, .smooth = {.how = smoothing::kind::average, .width = 5}, .after = 0};
  }

  /// Returns the setting of kvpress, whose budgets are flat where the last layer's would be smaller than the window.
  static constexpr pyramidkv kvpress() noexcept {
    pyramidkv made = paper();
    made.rule = budgets::taper_rule::kvpress;
    return made;
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    observation_parameters(p, visit);
    visit("beta", p.beta, "beside the window, layer 0 gets 2 - 1/beta of the mean, the last 1/beta");
    visit("rule", p.rule, "whose arithmetic shares the budget out over layers: authors or kvpress");
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "the published setting: window 64, average over 5");
    visit("kvpress", kvpress(), "the same, with kvpress's budgets of layers");
  }

  constexpr auto parts() const {
    snapkv const made{.tokens = tokens,
                      .ratio = ratio,
                      .window = window,
                      .smooth = smooth,
                      .taper = beta,
                      .tapers = rule,
                      .layers = layers,
                      .after = after};
    return made.parts();
  }
};

static_assert(policy_like<pyramidkv> && preset<pyramidkv>);

}  // namespace kvpolicy::presets
