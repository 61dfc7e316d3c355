// Preset lagkv: tokens that spread most in the scale of those behind them (Liang et al., 2025, arXiv 2504.04704).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/score/lag.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/prefill.hpp"
#include "kvpolicy/window/lag.hpp"

namespace kvpolicy::presets {

struct lagkv {
  static constexpr char const* name = "lagkv";
  static constexpr char const* source =
      "tokens that spread most in the scale of those behind them (Liang et al. 2025, arXiv 2504.04704)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  std::int32_t sinks = 4;
  std::int32_t lag = 128;
  bool cross = false;
  layering layers{};

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "kept of the prompt for each KV head");
    visit("sinks", p.sinks, "first tokens, always kept");
    visit("lag", p.lag, "tokens of a partition");
    visit("cross", p.cross, "compare scores across partitions, not just their order within them");
    layer_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit) noexcept {}

  constexpr auto parts() const {
    return policy{keep{segment::tokens{}, pool::none{}, score::lag{.sinks = sinks, .size = lag, .cross = cross},
                       budget::tokens{.count = tokens, .ratio = ratio}, select::top{}, window::lag{.sinks = sinks, .size = lag},
                       trigger::prefill{}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<lagkv> && preset<lagkv>);

}  // namespace kvpolicy::presets
