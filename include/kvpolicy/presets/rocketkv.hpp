// Preset rocketkv: pages, by a few channels, of what the prompt's last queries attend to; turns drop nothing (RocketKV).
#pragma once

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/bounds.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/upper_bound.hpp"
#include "kvpolicy/scorers/window_attention.hpp"
#include "kvpolicy/segments/pages.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/triggers/prefill.hpp"
#include "kvpolicy/windows/pages.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

/// Reads pages of the tokens that the prompt's last queries attend to, ranked by the channels in which a step's query is
/// largest. What a prompt does not choose is hidden until the next one, or dropped (RocketKV, Behnam et al. 2025, arXiv
/// 2502.14051).
struct rocketkv {
  static constexpr char const* name = "rocketkv";
  static constexpr char const* source =
      "pages, by few channels, of what each prompt's last queries attend to (RocketKV, Behnam et al. 2025, arXiv 2502.14051)";

  std::int32_t tokens = 512;  ///< tokens that each KV head reads at each step; the open page counts as whole
  std::int32_t kept = 1024;   ///< tokens of the prompt that each KV head may read until the next prompt, window included
  bool hide = true;           ///< hide the others, for a later prompt to choose; false: drop them, which frees memory
  std::int32_t window = 8;    ///< queries of the observation window; the paper: 32
  /// Smoothing of the attention over neighbouring tokens; `width` is the paper's kernel size.
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  std::int32_t page = 4;                     ///< page size, tokens
  std::int32_t channels = 32;                ///< channels of a query that count, where it is largest; 0: all
  std::int32_t recent_pages = 1;             ///< last pages, always read; the open page is one
  group_merge group = group_merge::maximum;  ///< merges the query heads of a KV head, to score pages
  std::int32_t after = 16;                   ///< tokens of the answer that the choice waits for; the paper: 0

  /// Returns the published setting: 2,048 tokens by a window of 32, of which each step reads 64 pages of 4.
  static constexpr rocketkv paper() noexcept {
    return {.tokens = 256, .kept = 2048, .window = 32, .group = group_merge::mean, .after = 0};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("tokens", p.tokens, "read by each KV head at each step, the open page counted as whole");
    visit("kept", p.kept, "of the prompt that each KV head may read until the next one, the window included");
    visit("hide", p.hide, "1: the others are hidden, and a later prompt may choose them; 0: they are dropped");
    visit("window", p.window, "observing queries, always kept");
    visit("kernel", p.smooth.width, "neighbouring tokens to smooth a score over; odd");
    visit("smooth", p.smooth.how, "none, average or maximum");
    visit("page", p.page, "tokens of a page");
    visit("channels", p.channels, "channels of a query that count, where it is largest; 0: all");
    visit("recent_pages", p.recent_pages, "last pages, always read; the open page is one");
    visit("group", p.group, "how a KV head's query heads are merged to score pages: mean or maximum");
    waiting_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "2,048 tokens by a window of 32, of which each step reads 64 pages of 4");
  }

  constexpr auto parts() const {
    return policy{keep{segments::tokens{}, pools::none{}, scorers::window_attention{.window = window, .smooth = smooth},
                       budgets::tokens{.count = kept}, selectors::top{}, windows::tokens{.recent = window},
                       triggers::prefill{.after = after, .hide = hide}},
                  keep{segments::pages{page}, pools::bounds{}, scorers::upper_bound{group, channels},
                       budgets::tokens{.count = tokens}, selectors::top{},
                       windows::pages{.size = page, .sink_pages = 0, .recent_pages = recent_pages}, triggers::every_step{}}};
  }
};

static_assert(policy_like<rocketkv> && preset<rocketkv>);

}  // namespace kvpolicy::presets
