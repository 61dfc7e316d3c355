// Preset streaming_llm: attention sinks and the most recent tokens (Xiao et al., 2024, arXiv 2309.17453).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/score/recency.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/every_step.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::presets {

struct streaming_llm {
  static constexpr char const* name = "streaming_llm";
  static constexpr char const* source = "attention sinks and recent tokens (Xiao et al. 2024, arXiv 2309.17453)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  std::int32_t sinks = 4;

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "kept in all");
    visit("sinks", p.sinks, "first tokens, among them");
  }
  template <class Visit>
  static constexpr void settings(Visit) noexcept {}

  constexpr auto parts() const {
    return policy{keep{segment::tokens{}, pool::none{}, score::recency{}, budget::tokens{tokens, ratio}, select::top{},
                       window::tokens{.sinks = sinks, .recent = 0}, trigger::every_step{}},
                  keep_all{}};
  }
};

static_assert(policy_like<streaming_llm> && preset<streaming_llm>);

}  // namespace kvpolicy::presets
