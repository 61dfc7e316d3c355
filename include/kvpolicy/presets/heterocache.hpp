// Preset heterocache: each head by its role; what satellites read follows their pivot's attention (Shi et al., HeteroCache).
#pragma once

#include "kvpolicy/budget/by_head_role.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/score/last_attention.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/drift.hpp"
#include "kvpolicy/trigger/prefill.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::presets {

struct heterocache {
  std::span<head_profile const> heads{};  ///< the model's profile (kvpolicy-profile), not owned
  std::int32_t tokens = 512;              ///< kept of the prompt by a KV head, mean over all heads of all layers
  std::optional<double> ratio{};          ///< fraction removed, in place of `tokens`
  double full_share = .25;                ///< of the budget, the most that whole heads may take; 1: the paper
  std::int32_t window = 5;                ///< W: steps between two looks at the pivots' attention, odd
  float drift = .5f;                      ///< tau_drift: overlap below which satellites fetch anew
  bool chance_corrected = false;          ///< overlap beyond what K of L tokens have by chance
  std::int32_t observe = 8;               ///< of the prompt's queries, the last ones that say what is kept; the paper: 1
  smoothing smooth{.how = smoothing::kind::maximum, .width = 31};  ///< of attention before a choice
  std::int32_t monitor_smooth = 5;                                 ///< tokens that a pivot's attention is averaged over, odd
  float floor = .05f;                                              ///< stability below which a head gets no more
  std::int32_t least = 16;                                         ///< tokens that any head keeps

  /// The paper's setting: one query, attention averaged over five tokens, every pivot and volatile head whole.
  static constexpr heterocache paper() noexcept {
    return {.full_share = 1, .observe = 1, .smooth = {.how = smoothing::kind::average, .width = 5}};
  }

  constexpr auto parts() const {
    budget::by_head_role const there{.heads = heads,
                                     .act = budget::by_head_role::of_act::retain,
                                     .count = tokens,
                                     .ratio = ratio,
                                     .floor = floor,
                                     .least = least,
                                     .full_share = full_share};
    budget::by_head_role read = there;
    read.act = budget::by_head_role::of_act::retrieve;
    return policy{keep{segment::tokens{}, pool::none{}, score::last_attention{observe, smooth}, there, select::top{},
                       window::tokens{.recent = observe}, trigger::prefill{}},
                  keep{segment::tokens{}, pool::none{}, score::last_attention{observe, smooth}, read, select::top{},
                       window::tokens{.recent = observe, .generated = true},
                       trigger::drift{.roles = read,
                                      .tau = drift,
                                      .window = window,
                                      .smooth = monitor_smooth,
                                      .chance_corrected = chance_corrected}}};
  }
};

static_assert(policy_like<heterocache> && preset<heterocache>);

}  // namespace kvpolicy::presets
