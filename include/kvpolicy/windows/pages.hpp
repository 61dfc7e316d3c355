// Window: the first pages and the most recent ones.
#pragma once

#include <algorithm>
#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::windows {

/// Protects the first pages, and the most recent pages with the open one.
struct pages {
  std::int32_t size = 16;         ///< tokens of a page, as in the segmenter
  std::int32_t sink_pages = 0;    ///< first pages
  std::int32_t recent_pages = 1;  ///< last pages; at least 1, the page of the current token
  /// Of a retrieve: the recent pages leave the window between two choices, and are read no more. If not, they stay until the
  /// next choice, which may take them.
  bool slides = false;

  void check(std::int64_t unit_size) const {
    KVPOLICY_EXPECTS(size == unit_size, "a window of pages of " + std::to_string(size) + " tokens around units of " +
                                            std::to_string(unit_size) + "; give both the same size");
    KVPOLICY_EXPECTS(sink_pages >= 0 && recent_pages >= 1,
                     "a window of " + std::to_string(sink_pages) + " sink and " + std::to_string(recent_pages) +
                         " recent pages; sink_pages must be at least 0, recent_pages at least 1 (the current token's page)");
  }

  constexpr protected_tokens at(std::int64_t tokens, std::int64_t = 0, std::int64_t = 0) const noexcept {
    std::int64_t const count = (tokens + size - 1) / size;
    std::int64_t const begin = std::max<std::int64_t>(0, count - recent_pages) * size;
    return {.sink_end = std::min<std::int64_t>(static_cast<std::int64_t>(sink_pages) * size, begin),
            .recent_begin = begin,
            .open_begin = tokens / size * size,
            .counted = std::min<std::int64_t>(static_cast<std::int64_t>(sink_pages) * size, begin) + count * size - begin,
            .recent = tokens - begin};
  }
};

static_assert(window_part<pages>);

}  // namespace kvpolicy::windows
