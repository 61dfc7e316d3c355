// Preset snapkv: what the prompt's last queries attend to (Li et al., 2024, arXiv 2404.14469).
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

/// The defaults are the setting that keeps answers on small models: a short window, wide neighbourhoods, and a choice that
/// waits for the answer's first tokens (docs/results/answers.md).
struct snapkv {
  static constexpr char const* name = "snapkv";
  static constexpr char const* source = "what the prompt's last queries attend to (Li et al. 2024, arXiv 2404.14469)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  std::int32_t sinks = 0;
  std::int32_t window = 8;
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  double taper = 0;
  layering layers{};
  std::int32_t after = 16;

  /// The setting of the paper's public implementations: window 64, average pooling over 5 tokens.
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
                       budgets::tokens{.count = tokens, .ratio = ratio, .taper = taper}, selectors::top{},
                       windows::tokens{.sinks = sinks, .recent = window}, triggers::prefill{after}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<snapkv> && preset<snapkv>);

}  // namespace kvpolicy::presets
