// Segment: single tokens.
#pragma once

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::segments {

/// Makes every token a unit.
struct tokens {
  static constexpr bool ragged = false;

  static constexpr std::int64_t unit_size() noexcept { return 1; }
  static constexpr void check() noexcept {}
};

static_assert(segmenter<tokens>);

}  // namespace kvpolicy::segments
