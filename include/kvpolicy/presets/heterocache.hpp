// Preset heterocache: treats each head by its role; a cluster of heads reads by its pivot's attention (HeteroCache).
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

/// Treats each head by its role; the heads of a cluster read by the attention of their pivot (HeteroCache, Shi et al.).
/// A cluster fetches other tokens when its pivot's attention drifts. Needs a profile of the model's heads.
struct heterocache {
  static constexpr char const* name = "heterocache";
  static constexpr char const* source = "each head by its role, fetching when its pivot drifts (HeteroCache, Shi et al.)";

  head_values<head_profile> heads{};  ///< `[layers * kv_heads]`, the model's profile by kvpolicy-profile; not owned
  std::int32_t tokens = 512;          ///< tokens of a KV head, mean over all heads of all layers; rho is tokens / prompt
  std::optional<double> ratio{};      ///< fraction of the prompt's tokens removed, in place of `tokens`; 1 - rho
  double full_share = .25;            ///< most of the budget that whole heads may take, 0 to 1; the paper: 1
  /// Whose attention is watched: whole pivots' (the paper), or also compressed pivots' and volatile heads'.
  budgets::by_head_role::watched watch = budgets::by_head_role::watched::all;
  bool own = false;                       ///< heads fetch by their own attention in place of their pivot's
  std::int32_t window = 1;                ///< W, queries of a look, odd; the paper: 5
  std::int32_t every = 3;                 ///< steps from one look to the next, W where W is more; the paper: W
  float drift = .5f;                      ///< tau_drift, overlap as a share of L_base, below which heads fetch again
  group_merge group = group_merge::mean;  ///< merges the query heads of a KV head
  bool chance_corrected = false;          ///< count only the overlap beyond chance, which is K/L for K of L tokens
  std::int32_t observe = 8;               ///< queries at the prompt's end that decide which tokens stay; the paper: 1
  bool protect = true;                    ///< their tokens stay whatever their score; the paper: 0, they compete
  /// Smoothing of the attention over neighbouring tokens; the paper: average over 5.
  smoothing smooth{.how = smoothing::kind::maximum, .width = 63};
  std::int32_t monitor_smooth = 5;  ///< tokens that the attention of a look is averaged over, odd
  float floor = .05f;               ///< least stability that counts: a head below it gets no more; the paper: none
  std::int32_t least = 16;          ///< fewest tokens that any head keeps; the paper: none
  std::int32_t after = 16;          ///< tokens of the answer that the choice waits for; the paper: 0
  bool next_step = false;           ///< what heads fetch serves the step after, so that it can come meanwhile; the paper: 1

  /// Returns the paper's setting: rho .5, every pivot and volatile head whole, the prompt's last query, and lists that serve
  /// from the next step on. The paper prints neither W nor the average's width; both are the authors' 5.
  static constexpr heterocache paper() noexcept {
    return {.ratio = .5,
            .full_share = 1,
            .watch = budgets::by_head_role::watched::whole,
            .window = 5,
            .every = 5,
            .observe = 1,
            .protect = false,
            .smooth = {.how = smoothing::kind::average, .width = 5},
            .floor = 1e-6f,
            .least = 1,
            .after = 0,
            .next_step = true};
  }

  template <class Self, class Visit>
  static constexpr void parameters(Self& p, Visit visit) {
    visit("profile", p.heads, "the model's profile, by kvpolicy-profile; not owned");
    budget_parameters(p, visit, "kept of the prompt by a KV head, mean over all heads of all layers");
    visit("full_share", p.full_share, "the largest share of the budget for whole heads; the paper: 1");
    visit("watch", p.watch,
          "whole: watch pivots that are read whole (the paper); all: also heads that the budget can't keep whole");
    visit("own", p.own, "each head fetches by its own attention, not by its pivot's");
    visit("window", p.window, "W: queries that a check of drift reads; odd; the paper: 5");
    visit("every", p.every, "steps between two checks of drift, at least W; the paper: W");
    visit("drift", p.drift, "tau_drift: the overlap below which heads fetch again");
    visit("group", p.group, "how a KV head's query heads are merged: mean or maximum");
    visit("chance_corrected", p.chance_corrected, "count only overlap beyond that of two random sets");
    visit("observe", p.observe, "how many of the prompt's last queries decide what is kept; the paper: 1");
    visit("protect", p.protect, "whether the tokens of these queries are always kept; the paper: 0");
    visit("kernel", p.smooth.width, "neighbouring tokens to smooth attention over; odd");
    visit("smooth", p.smooth.how, "none, average or maximum");
    visit("floor", p.floor, "stability below which a head gets no more");
    visit("least", p.least, "the fewest tokens that a head keeps");
    waiting_parameters(p, visit);
    next_step_parameters(p, visit);
  }
  template <class Visit>
  static constexpr void settings(Visit visit) {
    visit("paper", paper(), "rho .5, W 5, every pivot and volatile head whole, lists for the next step");
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
    scorers::pivot_attention const attention{
        .roles = read, .window = observe, .competes = !protect, .smooth = smooth, .merged = group, .own = own};
    std::int32_t const recent = protect ? observe : 0;
    return policy{keep{segments::tokens{}, pools::none{}, attention, there, selectors::top{}, windows::tokens{.recent = recent},
                       triggers::prefill{after}},
                  keep{segments::tokens{}, pools::none{}, attention, read, selectors::top{},
                       windows::tokens{.recent = recent, .generated = true},
                       triggers::drift{.roles = read,
                                       .tau = drift,
                                       .window = window,
                                       .every = std::max(every, window),
                                       .smooth = monitor_smooth,
                                       .merged = group,
                                       .chance_corrected = chance_corrected},
                       layering{}, next_step}};
  }
};

static_assert(policy_like<heterocache> && preset<heterocache>);

}  // namespace kvpolicy::presets
