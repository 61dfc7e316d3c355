// Preset tova: what the last query attends to, one token evicted at each step (Oren et al., 2024, arXiv 2401.06104).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/score/last_attention.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/every_step.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::presets {

struct tova {
  std::int32_t tokens = 512;      ///< kept in each layer, at every step; the step's own token comes on top
  std::optional<double> ratio{};  ///< fraction removed, in place of `tokens`
  layering layers{};

  constexpr auto parts() const {
    return policy{
        keep{segment::tokens{}, pool::none{}, score::last_attention{}, budget::tokens{.count = tokens, .ratio = ratio},
             select::top_of_layer{}, window::tokens{.recent = 1}, trigger::every_step{}, layers},
        keep_all{}};
  }
};

static_assert(policy_like<tova> && preset<tova>);

}  // namespace kvpolicy::presets
