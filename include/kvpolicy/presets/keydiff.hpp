// Preset keydiff: the keys that resemble the others least (Park et al., 2025, arXiv 2504.15364).
#pragma once

#include "kvpolicy/compose.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/key_similarity.hpp"

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

  constexpr auto parts() const {
    return retain(scorers::key_similarity{},
                  {.tokens = tokens, .ratio = ratio, .sinks = sinks, .recent = recent, .layers = layers});
  }
};

static_assert(policy_like<keydiff> && preset<keydiff>);

}  // namespace kvpolicy::presets
