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
  double beta = 20;   ///< beta, at least 1: layer 0 gets 2 - 1/beta of the mean, the last layer 1/beta; 0: all layers alike
  layering layers{};  ///< first layers that keep everything, and layers that share one choice
  std::int32_t after = 16;  ///< tokens of the answer that the choice waits for; the paper: 0

  /// Returns the setting of the paper's public implementations.
  static constexpr pyramidkv paper() noexcept {
    return {.window = 64, .smooth = {.how = smoothing::kind::average, .width = 5}, .after = 0};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    observation_parameters(p, visit);
    visit("beta", p.beta, "layer 0 gets 2 - 1/beta of the mean, the last 1/beta");
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "the published setting: window 64, average over 5");
  }

  constexpr auto parts() const {
    snapkv const made{
        .tokens = tokens, .ratio = ratio, .window = window, .smooth = smooth, .taper = beta, .layers = layers, .after = after};
    return made.parts();
  }
};

static_assert(policy_like<pyramidkv> && preset<pyramidkv>);

}  // namespace kvpolicy::presets
