// Preset chess: one page list for the request, chosen coarse to fine, renewed when the model is unsure (CHESS).
#pragma once

#include <limits>

#include "kvpolicy/budget/fractions.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/hierarchical_mean.hpp"
#include "kvpolicy/score/anchor_affinity.hpp"
#include "kvpolicy/segment/hierarchy.hpp"
#include "kvpolicy/select/cascade.hpp"
#include "kvpolicy/trigger/any_of.hpp"
#include "kvpolicy/trigger/entropy.hpp"
#include "kvpolicy/trigger/every.hpp"
#include "kvpolicy/window/pages.hpp"

namespace kvpolicy::presets {

struct chess {
  budget::fractions fractions{.grids = .5f, .chunks = .2f, .pages = .1f};  ///< of live units; the paper's "1%"
  segment::hierarchy units{};
  std::int32_t sink_pages = 1;
  std::int32_t recent_pages = 8;  ///< W: read always, and what the anchor is the mean of
  float entropy = 2.0f;           ///< nats; trigger::calibrate finds a model's own
  float varentropy = 2.0f;        ///< nats squared
  std::int32_t every = 0;         ///< steps after which the choice is made anew in any case; 0: none
  std::int32_t depth = 3;         ///< levels: 1 pages alone, 2 chunks and pages, 3 with grids
  bool paper_literal = false;     ///< Algorithm 1 to the letter, for comparison

  /// The paper's three settings, named by the share of the cache that they keep.
  static constexpr chess conservative() noexcept { return {.fractions = {.grids = .9f, .chunks = .9f, .pages = .9f}}; }
  static constexpr chess moderate() noexcept { return {.fractions = {.grids = .8f, .chunks = .7f, .pages = .7f}}; }
  static constexpr chess aggressive() noexcept { return {.fractions = {.grids = .5f, .chunks = .2f, .pages = .1f}}; }
  /// The paper's baseline for the trigger: every six pages, whatever the model says.
  static constexpr chess fixed_interval() noexcept {
    return {
        .entropy = std::numeric_limits<float>::infinity(), .varentropy = std::numeric_limits<float>::infinity(), .every = 192};
  }

  constexpr auto parts() const {
    return policy{keep_all{},
                  keep{units, pool::hierarchical_mean{}, score::anchor_affinity{.recent_pages = recent_pages}, fractions,
                       select::cascade{.paper_literal = paper_literal, .depth = depth},
                       window::pages{.size = units.page, .sink_pages = sink_pages, .recent_pages = recent_pages},
                       trigger::any_of{trigger::every{every},
                                       trigger::entropy{.mean = entropy, .variance = varentropy, .page = units.page}}}};
  }
};

static_assert(policy_like<chess> && preset<chess>);

}  // namespace kvpolicy::presets
