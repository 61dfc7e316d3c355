// Preset knorm: the keys of the smallest norms (Devoto et al., 2024, arXiv 2406.11430).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/score/key_norm.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/prefill.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::presets {

struct knorm {
  std::int32_t tokens = 512;      ///< kept of the prompt for each KV head; later tokens are all kept
  std::optional<double> ratio{};  ///< fraction removed, in place of `tokens`
  std::int32_t sinks = 0;         ///< first tokens, always kept
  std::int32_t recent = 0;        ///< last tokens of the prompt, always kept
  layering layers{};

  constexpr auto parts() const {
    return policy{keep{segment::tokens{}, pool::none{}, score::key_norm{}, budget::tokens{.count = tokens, .ratio = ratio},
                       select::top{}, window::tokens{.sinks = sinks, .recent = recent}, trigger::prefill{}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<knorm> && preset<knorm>);

}  // namespace kvpolicy::presets
