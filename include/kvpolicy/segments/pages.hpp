// Segment: pages of equal size, counted from the first token; the last one may be open.
#pragma once

#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::segments {

struct pages {
  static constexpr bool ragged = false;

  std::int32_t size = 16;  ///< tokens

  constexpr std::int64_t unit_size() const noexcept { return size; }
  void check() const { KVPOLICY_EXPECTS(size >= 1, "a unit of " + std::to_string(size) + " tokens; it needs at least 1"); }
};

static_assert(segmenter<pages>);

}  // namespace kvpolicy::segments
