// Preset expected_attention: what queries to come are expected to attend to (Devoto et al., 2025, arXiv 2510.00636).
#pragma once

#include "kvpolicy/compose.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/expected_attention.hpp"

namespace kvpolicy::presets {

struct expected_attention {
  static constexpr char const* name = "expected_attention";
  static constexpr char const* source = "what queries to come are expected to attend to (Devoto et al. 2025, arXiv 2510.00636)";

  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  std::int32_t sinks = 4;
  std::int32_t recent = 0;
  std::int32_t future = 512;
  bool covariance = true;
  bool value_norm = true;
  double epsilon = 0;
  layering layers{};

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    budget_parameters(p, visit, "kept of the prompt for each KV head");
    visit("sinks", p.sinks, "first tokens, always kept, and not counted as queries");
    visit("recent", p.recent, "last tokens of the prompt, always kept");
    visit("future", p.future, "positions behind the prompt that queries are expected at");
    visit("covariance", p.covariance, "of the queries, beside their mean");
    visit("value_norm", p.value_norm, "times the norms of the values");
    visit("epsilon", p.epsilon, "added to the attention before that");
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
