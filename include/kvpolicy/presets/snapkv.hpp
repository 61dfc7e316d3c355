// Preset snapkv: keeps the tokens that the prompt's last queries attend to (SnapKV).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/window_attention.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/prefill.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

/// Keeps the tokens that the prompt's last queries attend to (Li et al. 2024, arXiv 2404.14469).
/// The defaults keep answers on small models: a short window, wide neighbourhoods, and a choice that waits for the answer's
/// first tokens (docs/results/answers.md).
struct snapkv {
  static constexpr char const* name = "snapkv";
  static constexpr char const* source = "what the prompt's last queries attend to (Li et al. 2024, arXiv 2404.14469)";

  std::int32_t tokens = 512;      ///< tokens of the prompt that each KV head keeps, window included
  std::optional<double> ratio{};  ///< fraction of the prompt's tokens removed, 0 to below 1, in place of `tokens`
  std::int32_t sinks = 0;         ///< first tokens, always kept
  std::int32_t window = 8;        ///< queries of the observation window, whose tokens are always kept
  /// Smoothing of the attention over neighbouring tokens; `width` is the paper's kernel size.
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  double taper = 0;                                           ///< PyramidKV's beta: early layers keep more; 0: all layers alike
  budgets::taper_rule tapers = budgets::taper_rule::authors;  ///< whose arithmetic a taper follows
  layering layers{};        ///< first layers that keep everything, and layers that share one choice
  std::int32_t after = 16;  ///< tokens of the answer that the choice waits for; the paper: 0

  /// Returns the setting of the paper's public implementations: window 64, average pooling over 5 tokens.
  static constexpr snapkv paper() noexcept {
    return {.window = 64, .smooth = {.how = smoothing::kind::average, .width = 5}, .after = 0};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    observation_parameters(p, visit);
    visit("sinks", p.sinks, "first tokens, always kept");
    visit("taper", p.taper, "PyramidKV's beta: early layers keep more; 0: all alike");
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "the published setting: window 64, average over 5");
  }

  constexpr auto parts() const {
    return policy{keep{segments::tokens{}, pools::none{}, scorers::window_attention{.window = window, .smooth = smooth},
                       budgets::tokens{.count = tokens, .ratio = ratio, .taper = taper, .tapers = tapers}, selectors::top{},
                       windows::tokens{.sinks = sinks, .recent = window}, triggers::prefill{after}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<snapkv> && preset<snapkv>);

}  // namespace kvpolicy::presets
