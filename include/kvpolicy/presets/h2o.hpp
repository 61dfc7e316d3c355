// Preset h2o: heavy hitters and recent tokens, one evicted at each step (Zhang et al., 2023, arXiv 2306.14048).
#pragma once

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/score/accumulated_attention.hpp"
#include "kvpolicy/segment/tokens.hpp"
#include "kvpolicy/select/top.hpp"
#include "kvpolicy/trigger/every_step.hpp"
#include "kvpolicy/window/tokens.hpp"

namespace kvpolicy::presets {

struct h2o {
  std::int32_t tokens = 512;                  ///< kept for each KV head, at every step; the step's own token comes on top
  std::optional<double> ratio{};              ///< fraction removed, in place of `tokens`
  double recent_share = .5;                   ///< of the budget, for the most recent tokens
  select::merge reduce = select::merge::sum;  ///< of the queries' weights; mean: over those that saw the token
  std::int32_t queries = all_queries;         ///< of the prompt's, the last ones that count
  layering layers{};

  constexpr auto parts() const {
    return policy{keep{segment::tokens{}, pool::none{},
                       score::accumulated_attention{.mean = reduce == select::merge::mean, .window = queries},
                       budget::tokens{.count = tokens, .ratio = ratio}, select::top{},
                       window::tokens{.recent = 0, .share = recent_share}, trigger::every_step{}, layers},
                  keep_all{}};
  }
};

static_assert(policy_like<h2o> && preset<h2o>);

}  // namespace kvpolicy::presets
