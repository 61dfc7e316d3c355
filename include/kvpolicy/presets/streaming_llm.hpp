// Preset streaming_llm: keeps the attention sinks and the most recent tokens (StreamingLLM).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/recency.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

/// Keeps the attention sinks and the most recent tokens (Xiao et al. 2024, arXiv 2309.17453).
struct streaming_llm {
  static constexpr char const* name = "streaming_llm";
  static constexpr char const* source = "attention sinks and recent tokens (Xiao et al. 2024, arXiv 2309.17453)";

  std::int32_t tokens = 512;      ///< tokens kept in all, sinks included
  std::optional<double> ratio{};  ///< fraction of the tokens removed, 0 to below 1, in place of `tokens`
  std::int32_t sinks = 4;         ///< attention sinks: first tokens, always kept
  bool keep_prompt = false;       ///< keep the prompt, beside the budget

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "kept in all");
    visit("sinks", p.sinks, "first tokens, always kept; part of the budget");
    prompt_parameters(p, visit);
  }

  constexpr auto parts() const {
    return policy{keep{segments::tokens{}, pools::none{}, scorers::recency{}, budgets::tokens{tokens, ratio}, selectors::top{},
                       windows::tokens{.sinks = sinks, .recent = 0, .prompt = keep_prompt}, triggers::every_step{}},
                  keep_all{}};
  }
};

static_assert(policy_like<streaming_llm> && preset<streaming_llm>);

}  // namespace kvpolicy::presets
