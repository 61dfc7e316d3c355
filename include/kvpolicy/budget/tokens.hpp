// Budget: the same number of tokens for every list, protected ones included.
#pragma once

#include <algorithm>
#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::budget {

struct tokens {
  std::int32_t count = 512;

  std::int64_t most_tokens(cache_shape const& shape) const noexcept { return std::min<std::int64_t>(count, shape.max_tokens); }

  void check(cache_shape const& shape) const {
    KVPOLICY_EXPECTS(count > 0, "a budget of " + std::to_string(count) + " tokens keeps nothing; give at least 1");
    KVPOLICY_EXPECTS(count <= shape.max_tokens, "a budget of " + std::to_string(count) + " tokens is above the context of " +
                                                    std::to_string(shape.max_tokens) + "; lower it, or use policy 'full'");
  }
};

static_assert(budgeter<tokens>);

}  // namespace kvpolicy::budget
