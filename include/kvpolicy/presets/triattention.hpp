// Preset triattention: keeps what queries to come want at any distance, evicting now and then (TriAttention).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/trigonometric.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

/// Keeps what queries to come want at any distance; evicts every `every` steps (TriAttention, Mao et al. 2026). Needs moments
/// of the model's queries.
struct triattention {
  static constexpr char const* name = "triattention";
  static constexpr char const* source =
      "what queries to come want at any distance, for long reasoning (TriAttention, WeianMao/triattention)";

  head_values<query_moment> moments{};  ///< `[layers, q_heads, pairs]`, the model's, by kvpolicy-profile; not owned
  std::int32_t tokens = 512;            ///< tokens that each KV head keeps at an eviction; `every` more come until the next
  bool keep_prompt = true;              ///< keep the prompt, beside the budget
  std::int32_t every = 128;             ///< steps from one eviction to the next
  std::int32_t recent = 64;             ///< last tokens, always kept; the paper: 0
  std::int32_t farthest = 65536;        ///< largest distance of the queries to come
  group_merge group = group_merge::maximum;  ///< merges the query heads of a KV head
  layering layers{};                         ///< first layers that keep everything, and layers that share one choice

  /// Returns the published setting: no token is kept for being recent.
  static constexpr triattention paper() noexcept { return {.recent = 0}; }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("moments", p.moments, "file: moments of the model's queries, by kvpolicy-profile --moments");
    visit("tokens", p.tokens, "kept for each KV head at an eviction");
    prompt_parameters(p, visit);
    visit("every", p.every, "steps from one eviction to the next");
    visit("recent", p.recent, "last tokens, always kept");
    visit("farthest", p.farthest, "largest distance of the queries to come");
    visit("group", p.group, "how a KV head's query heads are merged: mean or maximum");
    layer_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "no token is kept for being recent");
  }

  constexpr auto parts() const {
    return policy{
        keep{segments::tokens{}, pools::none{},
             scorers::trigonometric{.moments = moments, .farthest = farthest, .generated = keep_prompt, .merged = group},
             budgets::tokens{.count = tokens}, selectors::top{}, windows::tokens{.recent = recent, .prompt = keep_prompt},
             triggers::every{every}, layers},
        keep_all{}};
  }
};

static_assert(policy_like<triattention> && preset<triattention>);

}  // namespace kvpolicy::presets
