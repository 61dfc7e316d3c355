// Preset pyramidkv: SnapKV's scores, more tokens for early layers than for late ones (Cai et al., 2024, arXiv 2406.02069).
#pragma once

#include "kvpolicy/presets/snapkv.hpp"

namespace kvpolicy::presets {

struct pyramidkv {
  std::int32_t tokens = 512;      ///< kept of the prompt for each KV head, mean over layers
  std::optional<double> ratio{};  ///< fraction removed, in place of `tokens`
  std::int32_t window = 8;        ///< observing queries, always kept
  smoothing smooth{.how = smoothing::kind::maximum, .width = 31};
  double beta = 20;  ///< layer 0 gets 2 - 1/beta of the mean, the last 1/beta
  layering layers{};

  /// The setting of the paper's public implementations.
  static constexpr pyramidkv paper() noexcept {
    return {.window = 64, .smooth = {.how = smoothing::kind::average, .width = 5}};
  }

  constexpr auto parts() const {
    return snapkv{.tokens = tokens, .ratio = ratio, .window = window, .smooth = smooth, .taper = beta, .layers = layers}
        .parts();
  }
};

static_assert(policy_like<pyramidkv> && preset<pyramidkv>);

}  // namespace kvpolicy::presets
