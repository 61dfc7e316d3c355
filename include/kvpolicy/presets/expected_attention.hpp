// Preset expected_attention: what queries to come are expected to attend to (Devoto et al., 2025, arXiv 2510.00636).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/score/expected_attention.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/prefill.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::presets {

struct expected_attention {
  std::int32_t tokens = 512;      ///< kept of the prompt for each KV head; later tokens are all kept
  std::optional<double> ratio{};  ///< fraction removed, in place of `tokens`
  std::int32_t sinks = 4;         ///< first tokens, always kept, and not counted as queries
  std::int32_t recent = 0;        ///< last tokens of the prompt, always kept
  std::int32_t future = 512;      ///< positions behind the prompt that queries are expected at
  bool covariance = true;         ///< of the queries, beside their mean
  bool value_norm = true;         ///< times the norms of the values
  double epsilon = .02;           ///< added to the attention before that
  layering layers{};

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
