// Budget: a fraction of the live units of each level of a hierarchy (CHESS, sec. 3.2).
#pragma once

#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::budgets {

struct fractions {
  static constexpr bool reads_scores = false;

  float grids = .5f;
  float chunks = .2f;
  float pages = .1f;
  /// Where not 0: so many tokens in all, protected ones included, in place of the fractions. The finest level keeps what is
  /// left of them, each coarser one the same share of its live units, and at least what holds as much.
  std::int32_t tokens = 0;

  static bool relative() noexcept { return true; }
  std::int64_t most_tokens(cache_shape const& shape) const noexcept { return shape.max_tokens; }

  std::int64_t of(budget_request const& request) const noexcept { return request.tokens; }

  void check(cache_shape const&) const {
    KVPOLICY_EXPECTS(tokens >= 0, "a budget of " + std::to_string(tokens) + " tokens; it can't be negative");
    for (float const fraction : {grids, chunks, pages}) {
      KVPOLICY_EXPECTS(fraction > 0 && fraction <= 1,
                       "a fraction of " + std::to_string(fraction) + " of a level's units; it must be above 0 and at most 1");
    }
  }
};

static_assert(budgeter<fractions>);

}  // namespace kvpolicy::budgets
