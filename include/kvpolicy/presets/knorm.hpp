// Preset knorm: the keys of the smallest norms (Devoto et al., 2024, arXiv 2406.11430).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/score/key_norm.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/prefill.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::presets {

struct knorm {
  static constexpr char const* name = "knorm";
  static constexpr char const* source = "keys of the smallest norms (Devoto et al. 2024, arXiv 2406.11430)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  std::int32_t sinks = 0;
  std::int32_t recent = 0;
  layering layers{};

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "kept of the prompt for each KV head");
    visit("sinks", p.sinks, "first tokens, always kept");
    visit("recent", p.recent, "last tokens of the prompt, always kept");
    layer_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit) noexcept {}

  constexpr auto parts() const {
    return policy{keep{segment::tokens{}, pool::none{}, score::key_norm{}, budget::tokens{.count = tokens, .ratio = ratio},
                       select::top{}, window::tokens{.sinks = sinks, .recent = recent}, trigger::prefill{}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<knorm> && preset<knorm>);

}  // namespace kvpolicy::presets
