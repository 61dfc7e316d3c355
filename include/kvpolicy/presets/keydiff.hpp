// Preset keydiff: the keys that resemble the others least (Park et al., 2025, arXiv 2504.15364).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/key_similarity.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/prefill.hpp"
#include "kvpolicy/windows/tokens.hpp"

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
        keep{segments::tokens{}, pools::none{}, scorers::key_similarity{}, budgets::tokens{.count = tokens, .ratio = ratio},
             selectors::top{}, windows::tokens{.sinks = sinks, .recent = recent}, triggers::prefill{}, layers},
        keep_all{}};
  }
};

static_assert(policy_like<keydiff> && preset<keydiff>);

}  // namespace kvpolicy::presets
