// Preset chess: one page list for the request, chosen coarse to fine, renewed when the model is unsure (CHESS).
#pragma once

#include "kvpolicy/budget/fractions.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/hierarchical_mean.hpp"
#include "kvpolicy/score/anchor_affinity.hpp"
#include "kvpolicy/segment/hierarchy.hpp"
#include "kvpolicy/select/cascade.hpp"
#include "kvpolicy/trigger/entropy.hpp"
#include "kvpolicy/window/pages.hpp"

namespace kvpolicy::presets {

struct chess {
  budget::fractions fractions{.grids = .5f, .chunks = .2f, .pages = .1f};  ///< of live units; the paper's "1%"
  segment::hierarchy units{};
  std::int32_t sink_pages = 1;
  std::int32_t recent_pages = 8;  ///< W: read always, and what the anchor is the mean of
  float entropy = 2.0f;           ///< nats; trigger::calibrate finds a model's own
  float varentropy = 2.0f;        ///< nats squared
  bool paper_literal = false;     ///< Algorithm 1 to the letter, for comparison

  constexpr auto parts() const {
    return policy{keep_all{}, keep{units, pool::hierarchical_mean{}, score::anchor_affinity{.recent_pages = recent_pages},
                                   fractions, select::cascade{.paper_literal = paper_literal},
                                   window::pages{.size = units.page, .sink_pages = sink_pages, .recent_pages = recent_pages},
                                   trigger::entropy{.mean = entropy, .variance = varentropy, .page = units.page}}};
  }
};

static_assert(policy_like<chess> && preset<chess>);

}  // namespace kvpolicy::presets
