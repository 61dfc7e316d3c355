// Preset pyramidkv: SnapKV's scores, more tokens for early layers than for late ones (Cai et al., 2024, arXiv 2406.02069).
#pragma once

#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/presets/snapkv.hpp"

namespace kvpolicy::presets {

struct pyramidkv {
  static constexpr char const* name = "pyramidkv";
  static constexpr char const* source = "snapkv with more tokens for early layers (Cai et al. 2024, arXiv 2406.02069)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  std::int32_t window = 8;
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  double beta = 20;
  layering layers{};
  std::int32_t after = 16;

  /// The setting of the paper's public implementations.
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
