// Segment: pages, grouped into chunks, grouped into grids (CHESS, sec. 3.1).
#pragma once

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::segment {

struct hierarchy {
  static constexpr bool ragged = false;

  std::int32_t page = 32;            ///< tokens
  std::int32_t pages_per_chunk = 8;  ///< N_c, not printed in the paper
  std::int32_t chunks_per_grid = 8;  ///< N_g, not printed in the paper

  constexpr std::int64_t unit_size() const noexcept { return page; }
};

static_assert(segmenter<hierarchy>);

}  // namespace kvpolicy::segment
