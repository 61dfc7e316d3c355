// Preset keydiff: the keys that resemble the others least (Park et al., 2025, arXiv 2504.15364).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/score/key_similarity.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/prefill.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::presets {

struct keydiff {
  std::int32_t tokens = 512;      ///< kept of the prompt for each KV head; later tokens are all kept
  std::optional<double> ratio{};  ///< fraction removed, in place of `tokens`
  std::int32_t sinks = 0;         ///< first tokens, always kept
  std::int32_t recent = 0;        ///< last tokens of the prompt, always kept
  layering layers{};

  constexpr auto parts() const {
    return policy{
        keep{segment::tokens{}, pool::none{}, score::key_similarity{}, budget::tokens{.count = tokens, .ratio = ratio},
             select::top{}, window::tokens{.sinks = sinks, .recent = recent}, trigger::prefill{}, layers},
        keep_all{}};
  }
};

static_assert(policy_like<keydiff> && preset<keydiff>);

}  // namespace kvpolicy::presets
