// Score: dot product with the mean of the recent pages' vectors (CHESS, eqs. 3 and 4).
#pragma once

#include <algorithm>
#include <span>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/pool/hierarchical_mean.hpp"

namespace kvpolicy::score {

struct anchor_affinity {
  static constexpr signals needs = signals::keys;
  static constexpr scope how_fine = scope::request;
  static constexpr scored of = scored::units;

  std::int32_t recent_pages = 8;  ///< W; the selector's window protects the same pages

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  /// The anchor, `[dims]`, in the summaries' own buffer.
  template <executor Exec>
  std::span<float const> anchor(pool::hierarchical_mean::summaries& summaries, Exec& exec) const {
    table<float const> pages = summaries.of(0);
    std::int64_t const recent = std::min<std::int64_t>(recent_pages, pages.rows);
    pages.data += (pages.rows - recent) * pages.row_stride;
    pages.rows = recent;
    pool_mean(pool::hierarchical_mean::as_rows(pages), {.unit_size = recent, .first = 0, .last = recent},
              table<float>{summaries.anchor.data(), 1, summaries.dims, summaries.dims}, 0, exec);
    return summaries.anchor;
  }
};

static_assert(scorer<anchor_affinity>);

}  // namespace kvpolicy::score
