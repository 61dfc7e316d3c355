// Preset keydiff: the keys that resemble the others least (Park et al., 2025, arXiv 2504.15364).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/score/key_similarity.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/prefill.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::presets {

struct keydiff {
  static constexpr char const* name = "keydiff";
  static constexpr char const* source = "keys that resemble the others least (Park et al. 2025, arXiv 2504.15364)";

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
    return policy{
        keep{segment::tokens{}, pool::none{}, score::key_similarity{}, budget::tokens{.count = tokens, .ratio = ratio},
             select::top{}, window::tokens{.sinks = sinks, .recent = recent}, trigger::prefill{}, layers},
        keep_all{}};
  }
};

static_assert(policy_like<keydiff> && preset<keydiff>);

}  // namespace kvpolicy::presets
