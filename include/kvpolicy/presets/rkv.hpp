// Preset rkv: keeps tokens that the last queries attend to and that do not repeat others, evicting now and then (R-KV).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/recent_attention.hpp"
#include "kvpolicy/scorers/redundancy.hpp"
#include "kvpolicy/scorers/weighted_sum.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

/// Keeps tokens that the last queries attend to and that do not repeat others; evicts every `every` steps (R-KV, Cai et al.
/// 2025, arXiv 2505.24133).
struct rkv {
  static constexpr char const* name = "rkv";
  static constexpr char const* source =
      "what the last queries attend to and no other key repeats, for long reasoning (R-KV, Cai et al. 2025, arXiv 2505.24133)";

  std::int32_t tokens = 512;  ///< tokens that each KV head keeps at an eviction; up to `every` more come until the next
  bool keep_prompt = true;    ///< keep the prompt, beside the budget; the paper: false
  std::int32_t every = 128;   ///< steps from one eviction to the next
  std::int32_t window = 8;    ///< last queries that count, whose tokens are always kept
  smoothing smooth{smoothing::kind::maximum, 7};  ///< smooths the attention over neighbours in the list
  group_merge group = group_merge::maximum;       ///< merges the query heads of a KV head
  double attention = .07;                         ///< lambda: weight of the attention; the rest weighs the redundancy
  float alike = .5f;                              ///< cosine above which a later token stands for an earlier one
  layering layers{};                              ///< first layers that keep everything, and layers that share one choice

  /// Returns the published setting: prompts compete for the budget too.
  static constexpr rkv paper() noexcept { return {.keep_prompt = false}; }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("tokens", p.tokens, "kept for each KV head at an eviction, the window included");
    prompt_parameters(p, visit);
    visit("every", p.every, "steps from one eviction to the next");
    visit("window", p.window, "last queries that count, whose tokens are always kept");
    visit("kernel", p.smooth.width, "neighbouring tokens to smooth attention over; odd");
    visit("smooth", p.smooth.how, "none, average or maximum");
    visit("group", p.group, "how a KV head's query heads are merged: mean or maximum");
    visit("attention", p.attention, "lambda: weight of the attention, 0 to 1; the rest weighs the redundancy");
    visit("alike", p.alike, "cosine above which a later token stands for an earlier one");
    layer_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "prompts compete for the budget too");
  }

  constexpr auto parts() const {
    return policy{keep{segments::tokens{}, pools::none{},
                       scorers::weighted_sum<scorers::recent_attention, scorers::redundancy>{
                           .first = {window, smooth, group},
                           .second = {alike},
                           .of_first = static_cast<float>(attention),
                           .of_second = static_cast<float>(attention - 1)},
                       budgets::tokens{.count = tokens}, selectors::top{},
                       windows::tokens{.recent = window, .prompt = keep_prompt}, triggers::every{every}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<rkv> && preset<rkv>);

}  // namespace kvpolicy::presets
