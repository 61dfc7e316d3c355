// Preset omnikv: a few layers attend to everything, and choose what the layers behind them read (OmniKV).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/current_attention.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

/// A few layers attend to everything, and choose what the layers behind them read (OmniKV, Hao et al., ICLR 2025).
struct omnikv {
  static constexpr char const* name = "omnikv";
  static constexpr char const* source = "few layers read everything and choose for those behind them (OmniKV, Hao et al. 2025)";

  std::int32_t tokens = 512;      ///< tokens of the prompt that the layers behind a leader read
  std::optional<double> ratio{};  ///< fraction of the prompt's tokens not read, 0 to below 1, in place of `tokens`
  std::int32_t sinks = 4;         ///< first tokens, always read; the paper: 0
  std::int32_t recent = 16;       ///< last tokens, always read, the current one included; the paper: 1
  bool generated = true;          ///< read every token behind the prompt, beside the budget
  smoothing smooth{};             ///< smoothing of the attention over neighbouring tokens
  /// Which layers choose, and how many layers from each on read everything. The paper names three layers for each model.
  layering layers{.dense_first = 2, .reuse = 6, .whole = 1};

  /// Returns the setting of the authors' example: layers 2, 8 and 18 of 32 choose 6.7 % of the prompt, the layer behind each of
  /// them reads everything too.
  static constexpr omnikv paper() noexcept {
    return {.ratio = .933, .sinks = 0, .recent = 1, .layers = {.leaders = layer_set::of(std::array{2, 8, 18}), .whole = 2}};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "read of the prompt by the layers behind a leader");
    visit("sinks", p.sinks, "first tokens, always read");
    visit("recent", p.recent, "last tokens, always read, the current one included");
    visit("generated", p.generated, "read every token behind the prompt, beside the budget");
    visit("kernel", p.smooth.width, "neighbouring tokens to smooth a score over; odd");
    visit("smooth", p.smooth.how, "none, average or maximum");
    layer_parameters(p, visit);
    visit("whole", p.layers.whole, "layers from a leader on that read everything, the leader included");
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "layers 2, 8 and 18 choose 6.7 % of the prompt; the layer behind each reads everything too");
  }

  constexpr auto parts() const {
    return policy{
        keep_all{},
        keep{segments::tokens{}, pools::none{}, scorers::current_attention{group_merge::maximum, smooth},
             budgets::tokens{.count = tokens, .ratio = ratio}, selectors::top_of_layer{.heads = selectors::merge::maximum},
             windows::tokens{.sinks = sinks, .recent = recent, .generated = generated}, triggers::every_step{}, layers}};
  }
};

static_assert(policy_like<omnikv> && preset<omnikv>);

}  // namespace kvpolicy::presets
