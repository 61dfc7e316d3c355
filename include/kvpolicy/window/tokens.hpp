// Window: the first tokens and the most recent ones.
#pragma once

#include <algorithm>
#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::window {

struct tokens {
  std::int32_t sinks = 0;   ///< tokens
  std::int32_t recent = 1;  ///< tokens, at least the current one

  void check(std::int64_t unit_size) const {
    KVPOLICY_EXPECTS(unit_size == 1, "a window of tokens around units of " + std::to_string(unit_size) +
                                         " tokens would cut them; use window::pages");
    KVPOLICY_EXPECTS(sinks >= 0 && recent >= 1, "a window of " + std::to_string(sinks) + " sinks and " +
                                                    std::to_string(recent) +
                                                    " recent tokens; sinks start at 0, recent ones at 1, the current token");
  }

  constexpr protected_tokens at(std::int64_t count) const noexcept {
    std::int64_t const begin = std::max<std::int64_t>(0, count - recent);
    return {.sink_end = std::min<std::int64_t>(sinks, begin), .recent_begin = begin, .open_begin = count};
  }
};

static_assert(window_part<tokens>);

}  // namespace kvpolicy::window
