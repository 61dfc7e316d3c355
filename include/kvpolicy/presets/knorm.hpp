// Preset knorm: keeps the tokens whose keys have the smallest norms (Knorm).
#pragma once

#include "kvpolicy/compose.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/key_norm.hpp"

namespace kvpolicy::presets {

/// Keeps the tokens of the prompt whose keys have the smallest norms (Devoto et al. 2024, arXiv 2406.11430).
struct knorm {
  static constexpr char const* name = "knorm";
  static constexpr char const* source = "keys of the smallest norms (Devoto et al. 2024, arXiv 2406.11430)";

  std::int32_t tokens = 512;      ///< tokens of the prompt that each KV head keeps
  std::optional<double> ratio{};  ///< fraction of the prompt's tokens removed, 0 to below 1, in place of `tokens`
  std::int32_t sinks = 0;         ///< first tokens, always kept
  std::int32_t recent = 0;        ///< last tokens of the prompt, always kept
  layering layers{};              ///< first layers that keep everything, and layers that share one choice

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
