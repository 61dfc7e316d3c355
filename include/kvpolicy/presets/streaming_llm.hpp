// Preset streaming_llm: attention sinks and the most recent tokens (Xiao et al., 2024, arXiv 2309.17453).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/score/recency.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/every_step.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::presets {

struct streaming_llm {
  std::int32_t tokens = 512;      ///< kept in all, sinks included
  std::optional<double> ratio{};  ///< fraction removed, in place of `tokens`
  std::int32_t sinks = 4;         ///< first tokens, always kept

  constexpr auto parts() const {
    return policy{keep{segment::tokens{}, pool::none{}, score::recency{}, budget::tokens{tokens, ratio}, select::top{},
                       window::tokens{.sinks = sinks, .recent = 0}, trigger::every_step{}},
                  keep_all{}};
  }
};

static_assert(policy_like<streaming_llm> && preset<streaming_llm>);

}  // namespace kvpolicy::presets
