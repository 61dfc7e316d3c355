// Preset keydiff: keeps the tokens whose keys resemble the other keys least (KeyDiff).
#pragma once

#include "kvpolicy/compose.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/key_similarity.hpp"

namespace kvpolicy::presets {

/// Keeps the tokens of the prompt whose keys resemble the other keys least (Park et al. 2025, arXiv 2504.15364).
struct keydiff {
  static constexpr char const* name = "keydiff";
  static constexpr char const* source = "keys that resemble the others least (Park et al. 2025, arXiv 2504.15364)";

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
    return retain(scorers::key_similarity{},
                  {.tokens = tokens, .ratio = ratio, .sinks = sinks, .recent = recent, .layers = layers});
  }
};

static_assert(policy_like<keydiff> && preset<keydiff>);

}  // namespace kvpolicy::presets
