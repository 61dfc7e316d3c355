// Window: the first tokens and the most recent ones.
#pragma once

#include <algorithm>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::window {

struct tokens {
  std::int32_t sinks = 0;   ///< tokens
  std::int32_t recent = 1;  ///< tokens, at least the current one

  constexpr protected_tokens at(std::int64_t count) const noexcept {
    std::int64_t const begin = std::max<std::int64_t>(0, count - std::max(1, recent));
    return {.sink_end = std::min<std::int64_t>(sinks, begin), .recent_begin = begin, .open_begin = count};
  }
};

static_assert(window_part<tokens>);

}  // namespace kvpolicy::window
