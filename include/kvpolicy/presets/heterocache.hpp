// Preset heterocache: each head by its role; what a cluster reads follows its pivot's attention (Shi et al., HeteroCache).
#pragma once

#include <algorithm>

#include "kvpolicy/budgets/by_head_role.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/presets/parameters.hpp"
#include "kvpolicy/scorers/pivot_attention.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/selectors/top.hpp"
#include "kvpolicy/triggers/drift.hpp"
#include "kvpolicy/triggers/prefill.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy::presets {

struct heterocache {
  static constexpr char const* name = "heterocache";
  static constexpr char const* source = "each head by its role, fetching when its pivot drifts (HeteroCache, Shi et al.)";

  std::span<head_profile const> heads{};
  std::int32_t tokens = 512;
  std::optional<double> ratio{};
  double full_share = .25;
  budgets::by_head_role::watched watch = budgets::by_head_role::watched::all;
  bool own = false;
  std::int32_t window = 1;
  std::int32_t every = 3;
  float drift = .5f;
  group_merge group = group_merge::mean;
  bool chance_corrected = false;
  std::int32_t observe = 8;
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  std::int32_t monitor_smooth = 5;
  float floor = .05f;
  std::int32_t least = 16;
  std::int32_t after = 16;

  /// The paper's setting: one query, attention averaged over five tokens, every pivot and volatile head whole.
  static constexpr heterocache paper() noexcept {
    return {.full_share = 1,
            .watch = budgets::by_head_role::watched::whole,
            .window = 5,
            .every = 5,
            .observe = 1,
            .smooth = {.how = smoothing::kind::average, .width = 5},
            .after = 0};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("profile", p.heads, "the model's, made by kvpolicy-profile; not owned");
    budget_parameters(p, visit, "kept of the prompt by a KV head, mean over all heads of all layers");
    visit("full_share", p.full_share, "of the budget, the most for whole heads; 1: the paper");
    visit("watch", p.watch, "whose attention is watched: whole pivots' (the paper), or all that should be whole");
    visit("own", p.own, "heads fetch by their own attention, not by their pivot's");
    visit("window", p.window, "W: queries that a look is at, odd; the paper: 5");
    visit("every", p.every, "steps from one look to the next, W where that is more; the paper: W");
    visit("drift", p.drift, "tau_drift: overlap below which heads fetch anew");
    visit("group", p.group, "how a KV head's query heads are merged: mean or maximum");
    visit("chance_corrected", p.chance_corrected, "overlap beyond what K of L tokens have by chance");
    visit("observe", p.observe, "of the prompt's queries, the last ones that say what is kept; the paper: 1");
    visit("kernel", p.smooth.width, "tokens that attention is smoothed over, odd");
    visit("smooth", p.smooth.how, "none, average or maximum");
    visit("floor", p.floor, "stability below which a head gets no more");
    visit("least", p.least, "tokens that any head keeps");
    waiting_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "one query, average over 5, every pivot and volatile head whole");
  }

  constexpr auto parts() const {
    budgets::by_head_role const there{.heads = heads,
                                      .rule = budgets::by_head_role::of_rule::retain,
                                      .count = tokens,
                                      .ratio = ratio,
                                      .floor = floor,
                                      .least = least,
                                      .full_share = full_share,
                                      .watch = watch};
    budgets::by_head_role read = there;
    read.rule = budgets::by_head_role::of_rule::retrieve;
    scorers::pivot_attention const attention{.roles = read, .window = observe, .smooth = smooth, .merged = group, .own = own};
    return policy{keep{segments::tokens{}, pools::none{}, attention, there, selectors::top{},
                       windows::tokens{.recent = observe}, triggers::prefill{after}},
                  keep{segments::tokens{}, pools::none{}, attention, read, selectors::top{},
                       windows::tokens{.recent = observe, .generated = true},
                       triggers::drift{.roles = read,
                                       .tau = drift,
                                       .window = window,
                                       .every = std::max(every, window),
                                       .smooth = monitor_smooth,
                                       .merged = group,
                                       .chance_corrected = chance_corrected}}};
  }
};

static_assert(policy_like<heterocache> && preset<heterocache>);

}  // namespace kvpolicy::presets
