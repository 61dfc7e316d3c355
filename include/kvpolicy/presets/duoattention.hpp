// Preset duoattention: heads that retrieve keep every token, the others sinks and recent tokens (DuoAttention).
#pragma once

#include "kvpolicy/budgets/by_head.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/recency.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

/// Keeps every token for the heads that retrieve, attention sinks and recent tokens for the others (Xiao et al. 2024, arXiv
/// 2410.10819). The choice does not depend on the question. Needs a file that says how much each head retrieves.
struct duoattention {
  static constexpr char const* name = "duoattention";
  static constexpr char const* source =
      "every token for heads that retrieve, sinks and recent ones for others (Xiao et al. 2024, arXiv 2410.10819)";

  head_values<float> retrieval{};  ///< `[layers * kv_heads]`, how much each head retrieves; not owned
  std::int32_t tokens = 512;       ///< tokens of a head, mean over all heads of all layers; 0: `streaming` says
  std::optional<double> ratio{};   ///< share of the heads that stream, 0 to below 1, in place of `tokens`
  double streaming = .5;           ///< share of the heads that stream, where `tokens` is 0
  std::int32_t sinks = 4;          ///< first tokens that a head that streams keeps; the paper: 64 to 128
  std::int32_t recent = 64;        ///< last tokens that a head that streams keeps; the paper: 256

  /// Returns the published setting: half of the heads stream, with 128 sinks and 256 recent tokens.
  static constexpr duoattention paper() noexcept { return {.tokens = 0, .sinks = 128, .recent = 256}; }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("heads", p.retrieval, "file: how much each head retrieves; DuoAttention's, or by kvpolicy-profile");
    budget_parameters(p, visit, "kept by a KV head, mean over all heads of all layers; 0: streaming says");
    visit("streaming", p.streaming, "share of the heads that stream, where tokens is 0");
    visit("sinks", p.sinks, "first tokens that a head that streams keeps");
    visit("recent", p.recent, "last tokens that a head that streams keeps");
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "half of the heads stream, with 128 sinks and 256 recent tokens");
  }

  constexpr auto parts() const {
    budgets::by_head const lengths{
        .retrieval = retrieval, .few = sinks + recent, .streaming = streaming, .count = tokens, .ratio = ratio};
    return policy{keep{segments::tokens{}, pools::none{}, scorers::recency_of_heads{}, lengths, selectors::top{},
                       windows::tokens{.sinks = sinks, .recent = 0}, triggers::every_step{}},
                  keep_all{}};
  }
};

static_assert(policy_like<duoattention> && preset<duoattention>);

}  // namespace kvpolicy::presets
