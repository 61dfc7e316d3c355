// Preset chunkkv: keeps whole chunks of the prompt, by the attention of its last queries (ChunkKV).
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

/// Keeps whole chunks of the prompt, the same for all heads of a layer, by the attention of the prompt's last queries (Liu et
/// al. 2025, arXiv 2502.00299).
struct chunkkv {
  static constexpr char const* name = "chunkkv";
  static constexpr char const* source = "whole chunks of the prompt (ChunkKV, Liu et al. 2025, arXiv 2502.00299)";

  std::int32_t tokens = 512;      ///< tokens of the prompt that each KV head keeps, window included
  std::optional<double> ratio{};  ///< fraction of the prompt's tokens removed, 0 to below 1, in place of `tokens`
  std::int32_t chunk = 10;        ///< c, tokens of a chunk
  std::int32_t window = 8;        ///< w, queries of the observation window, whose tokens are always kept
  /// Smoothing of the attention over neighbouring tokens; the paper: none.
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  selectors::merge reduce = selectors::merge::maximum;  ///< merges the scores of a chunk's tokens; the paper: sum
  bool window_in_budget = false;  ///< the window competes, scored 1 above the best; a share of the chunks is kept
  layering layers{};              ///< first layers that keep everything, and layers that share one choice; the paper: 2 share
  std::int32_t after = 16;        ///< tokens of the answer that the choice waits for; the paper: 0

  /// Returns the paper's setting: attention without smoothing, sums over chunks, and one choice for two layers. The paper's
  /// window is "small", without a printed size.
  static constexpr chunkkv paper() noexcept {
    return {.smooth = {}, .reduce = selectors::merge::sum, .layers = {.reuse = 2}, .after = 0};
  }
  /// Returns the public implementation's setting: SnapKV's scores, means over longer chunks, the window within the budget.
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
