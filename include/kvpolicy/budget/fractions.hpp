// Budget: a fraction of the live units of each level of a hierarchy (CHESS, sec. 3.2).
#pragma once

#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::budget {

struct fractions {
  float grids = .5f;
  float chunks = .2f;
  float pages = .1f;

  std::int64_t most_tokens(cache_shape const& shape) const noexcept { return shape.max_tokens; }

  void check(cache_shape const&) const {
    for (float const fraction : {grids, chunks, pages}) {
      KVPOLICY_EXPECTS(fraction > 0 && fraction <= 1,
                       "a fraction of " + std::to_string(fraction) + " of a level's units; it must be above 0 and at most 1");
    }
  }
};

static_assert(budgeter<fractions>);

}  // namespace kvpolicy::budget
