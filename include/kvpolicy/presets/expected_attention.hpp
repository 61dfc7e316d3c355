// Preset expected_attention: what queries to come are expected to attend to (Devoto et al., 2025, arXiv 2510.00636).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/score/expected_attention.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/prefill.hpp"
#include "kvpolicy/window/tokens.hpp"

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
  template <class Visit>
  static constexpr void settings(Visit) noexcept {}

  constexpr auto parts() const {
    return policy{
        keep{segment::tokens{}, pool::none{},
             score::expected_attention{
                 .sinks = sinks, .future = future, .covariance = covariance, .value_norm = value_norm, .epsilon = epsilon},
             budget::tokens{.count = tokens, .ratio = ratio}, select::top{}, window::tokens{.sinks = sinks, .recent = recent},
             trigger::prefill{}, layers},
        keep_all{}};
  }
};

static_assert(policy_like<expected_attention> && preset<expected_attention>);

}  // namespace kvpolicy::presets
