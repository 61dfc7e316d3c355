// Preset expected_attention: keeps the tokens that future queries are expected to attend to (ExpectedAttention).
#pragma once

#include "kvpolicy/compose.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/expected_attention.hpp"

namespace kvpolicy::presets {

/// Keeps the tokens of the prompt that future queries are expected to attend to (Devoto et al. 2025, arXiv 2510.00636).
struct expected_attention {
  static constexpr char const* name = "expected_attention";
  static constexpr char const* source = "what queries to come are expected to attend to (Devoto et al. 2025, arXiv 2510.00636)";

  std::int32_t tokens = 512;      ///< tokens of the prompt that each KV head keeps
  std::optional<double> ratio{};  ///< fraction of the prompt's tokens removed, 0 to below 1, in place of `tokens`
  std::int32_t sinks = 4;         ///< first tokens, always kept, and not counted as queries
  std::int32_t recent = 0;        ///< last tokens of the prompt, always kept
  std::int32_t future = 512;      ///< positions behind the prompt at which queries are expected
  bool covariance = true;         ///< use the queries' covariance beside their mean
  bool value_norm = true;         ///< multiply the score by the norm of the token's value
  double epsilon = 0;             ///< added to the attention before that product
  layering layers{};              ///< first layers that keep everything, and layers that share one choice

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "kept of the prompt for each KV head");
    visit("sinks", p.sinks, "first tokens, always kept, and not counted as queries");
    visit("recent", p.recent, "last tokens of the prompt, always kept");
    visit("future", p.future, "positions after the prompt at which queries are expected");
    visit("covariance", p.covariance, "use the queries' covariance as well as their mean");
    visit("value_norm", p.value_norm, "multiply by the norms of the values");
    visit("epsilon", p.epsilon, "added to the attention before value_norm");
    layer_parameters(p, visit);
  }

  constexpr auto parts() const {
    return retain(
        scorers::expected_attention{
            .sinks = sinks, .future = future, .covariance = covariance, .value_norm = value_norm, .epsilon = epsilon},
        {.tokens = tokens, .ratio = ratio, .sinks = sinks, .recent = recent, .layers = layers});
  }
};

static_assert(policy_like<expected_attention> && preset<expected_attention>);

}  // namespace kvpolicy::presets
