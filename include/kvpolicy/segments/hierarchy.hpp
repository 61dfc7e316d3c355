// Segment: pages, grouped into chunks and grids.
#pragma once

#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::segments {

/// Cuts a sequence into pages, groups pages into chunks, and chunks into grids (CHESS, section 3.1).
struct hierarchy {
  static constexpr bool ragged = false;

  std::int32_t page = 32;            ///< tokens
  std::int32_t pages_per_chunk = 8;  ///< N_c; the paper does not print it
  std::int32_t chunks_per_grid = 8;  ///< N_g; the paper does not print it

  constexpr std::int64_t unit_size() const noexcept { return page; }
  void check() const {
    KVPOLICY_EXPECTS(page >= 1 && pages_per_chunk >= 1 && chunks_per_grid >= 1,
                     "a hierarchy of " + std::to_string(page) + " tokens a page, " + std::to_string(pages_per_chunk) +
                         " pages a chunk, " + std::to_string(chunks_per_grid) + " chunks a grid; each needs at least 1");
  }
};

static_assert(segmenter<hierarchy>);

}  // namespace kvpolicy::segments
