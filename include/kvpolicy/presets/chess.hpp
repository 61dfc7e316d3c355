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

/// The defaults read what answers most on a small model (docs/results.md); the paper's settings are named.
struct chess {
  budget::fractions fractions{.tokens = 512};  ///< read in all; or fractions of each level's live units, where tokens is 0
  segment::hierarchy units{.page = 16};
  std::int32_t sink_pages = 1;
  std::int32_t recent_pages = 2;  ///< W: read always, and what the anchor is the mean of
  float entropy = 2.0f;           ///< nats; trigger::calibrate finds a model's own
  float varentropy = 2.0f;        ///< nats squared
  std::int32_t every = 0;         ///< steps after which the choice is made anew in any case; 0: none
  std::int32_t depth = 1;         ///< levels: 1 pages alone, 2 chunks and pages, 3 with grids
  bool standardised = true;       ///< rank pages by what sets them apart from each other; not in the paper
  bool paper_literal = false;     ///< Algorithm 1 to the letter, for comparison

  /// The paper's method, by fractions of the live units.
  static constexpr chess of_paper(budget::fractions const& fractions) noexcept {
    return {.fractions = fractions, .units = {.page = 32}, .recent_pages = 8, .depth = 3, .standardised = false};
  }
  /// Its three settings, named by the share of the cache that they keep; the last is its "1%".
  static constexpr chess conservative() noexcept { return of_paper({.grids = .9f, .chunks = .9f, .pages = .9f}); }
  static constexpr chess moderate() noexcept { return of_paper({.grids = .8f, .chunks = .7f, .pages = .7f}); }
  static constexpr chess aggressive() noexcept { return of_paper({.grids = .5f, .chunks = .2f, .pages = .1f}); }
  static constexpr chess paper() noexcept { return aggressive(); }
  /// The paper's baseline for the trigger: every six pages, whatever the model says.
  static constexpr chess fixed_interval() noexcept {
    chess made = aggressive();
    made.entropy = made.varentropy = std::numeric_limits<float>::infinity();
    made.every = 192;
    return made;
  }

  constexpr auto parts() const {
    return policy{keep_all{},
                  keep{units, pool::hierarchical_mean{},
                       score::anchor_affinity{.recent_pages = recent_pages, .standardised = standardised}, fractions,
                       select::cascade{.paper_literal = paper_literal, .depth = depth},
                       window::pages{.size = units.page, .sink_pages = sink_pages, .recent_pages = recent_pages},
                       trigger::any_of{trigger::every{every},
                                       trigger::entropy{.mean = entropy, .variance = varentropy, .page = units.page}}}};
  }
};

static_assert(policy_like<chess> && preset<chess>);

}  // namespace kvpolicy::presets
