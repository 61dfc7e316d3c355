// Preset lagkv: keeps the tokens whose keys and values spread most in the scale of the tokens behind them (LagKV).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/lag.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/prefill.hpp"
#include "kvpolicy/windows/lag.hpp"

namespace kvpolicy::presets {

/// Keeps the tokens of the prompt whose keys and values spread most in the scale of the tokens behind them (Liang et al. 2025,
/// arXiv 2504.04704).
struct lagkv {
  static constexpr char const* name = "lagkv";
  static constexpr char const* source =
      "tokens that spread most in the scale of those behind them (Liang et al. 2025, arXiv 2504.04704)";

  std::int32_t tokens = 512;      ///< tokens of the prompt that each KV head keeps
  std::optional<double> ratio{};  ///< fraction of the prompt's tokens removed, 0 to below 1, in place of `tokens`
  std::int32_t sinks = 4;         ///< first tokens, always kept
  std::int32_t lag = 128;         ///< tokens of a partition, the lag size
  bool cross = false;             ///< compare scores across partitions; false: ranks within a partition
  layering layers{};              ///< first layers that keep everything, and layers that share one choice

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "kept of the prompt for each KV head");
    visit("sinks", p.sinks, "first tokens, always kept");
    visit("lag", p.lag, "tokens of a partition");
    visit("cross", p.cross, "compare scores across partitions, not just their order within them");
    layer_parameters(p, visit);
  }

  constexpr auto parts() const {
    return policy{keep{segments::tokens{}, pools::none{}, scorers::lag{.sinks = sinks, .size = lag, .cross = cross},
                       budgets::tokens{.count = tokens, .ratio = ratio}, selectors::top{},
                       windows::lag{.sinks = sinks, .size = lag}, triggers::prefill{}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<lagkv> && preset<lagkv>);

}  // namespace kvpolicy::presets
