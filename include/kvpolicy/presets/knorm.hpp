// Preset knorm: the keys of the smallest norms (Devoto et al., 2024, arXiv 2406.11430).
#pragma once

#include "kvpolicy/compose.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/key_norm.hpp"

namespace kvpolicy::presets {

struct knorm {
  static constexpr char const* name = "knorm";
  static constexpr char const* source = "keys of the smallest norms (Devoto et al. 2024, arXiv 2406.11430)";

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
    return retain(scorers::key_norm{}, {.tokens = tokens, .ratio = ratio, .sinks = sinks, .recent = recent, .layers = layers});
  }
};

static_assert(policy_like<knorm> && preset<knorm>);

}  // namespace kvpolicy::presets
