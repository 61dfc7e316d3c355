// Preset tova: what the last query attends to, one token evicted at each step (Oren et al., 2024, arXiv 2401.06104).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/score/last_attention.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/every_step.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::presets {

struct tova {
  static constexpr char const* name = "tova";
  static constexpr char const* source =
      "what the last query attends to, one evicted at each step (Oren et al. 2024, arXiv 2401.06104)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  layering layers{};

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "kept in each layer; the step's own token comes on top");
    layer_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit) noexcept {}

  constexpr auto parts() const {
    return policy{
        keep{segment::tokens{}, pool::none{}, score::last_attention{}, budget::tokens{.count = tokens, .ratio = ratio},
             select::top_of_layer{}, window::tokens{.recent = 1}, trigger::every_step{}, layers},
        keep_all{}};
  }
};

static_assert(policy_like<tova> && preset<tova>);

}  // namespace kvpolicy::presets
