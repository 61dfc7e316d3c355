// Segment: pages of equal size.
#pragma once

#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::segments {

/// Cuts a sequence into pages of equal size, from the first token on. The last page may be open.
struct pages {
  static constexpr bool ragged = false;

  std::int32_t size = 16;  ///< tokens

  constexpr std::int64_t unit_size() const noexcept { return size; }
  void check() const {
    KVPOLICY_EXPECTS(size >= 1, "a page size of " + std::to_string(size) + " tokens; it must be at least 1");
  }
};

static_assert(segmenter<pages>);

}  // namespace kvpolicy::segments
