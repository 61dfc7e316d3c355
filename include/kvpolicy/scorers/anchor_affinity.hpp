// Scorer anchor_affinity: scores a unit by its dot product with the mean of the recent pages (CHESS, eqs. 3 and 4).
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/pools/hierarchical_mean.hpp"

namespace kvpolicy::scorers {

/// Scores a page, chunk or grid by the dot product of its mean key with an anchor (CHESS, eq. 4).
/// The anchor is the mean of the recent pages' vectors (eq. 3). selectors::cascade computes the dot products.
struct anchor_affinity {
  static constexpr signals needs = signals::keys;
  static constexpr scope granularity = scope::request;
  static constexpr scored of = scored::units;

  std::int32_t recent_pages = 8;  ///< W, pages; the rule's window protects the same pages
  /// Counts each channel by its difference from the mean page, in units of its deviation over pages. Keys have a large common
  /// part, and a few channels are large: without this option, these alone rank the pages. Not in the paper.
  bool standardised = false;

  /// The smallest deviation of a channel that counts, as a share of the channel's mean. Smaller deviations are the rounding of
  /// 16-bit keys.
  static constexpr float min_deviation = 1e-3f;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  /// Computes the anchor, in the summaries' own buffer.
  /// @param summaries  the pool's state; its pages are up to date, and there is at least one
  /// @param exec  runs the primitives
  /// @return the anchor, `[dims]` with dims = layers * kv_heads * head_dim; valid until the next call
  template <executor Exec>
  std::span<float const> anchor(pools::hierarchical_mean::summaries& summaries, Exec& exec) const {
    table<float const> pages = summaries.of(0);
    std::int64_t const recent = std::min<std::int64_t>(recent_pages, pages.rows);
    pages.data += (pages.rows - recent) * pages.row_stride;
    pages.rows = recent;
    pool_mean(pools::hierarchical_mean::as_rows(pages), {.unit_size = recent, .first = 0, .last = recent},
              table<float>{summaries.anchor.data(), 1, summaries.dims, summaries.dims}, 0, exec);
    if (standardised) standardise(summaries, exec);
    return summaries.anchor;
  }

 private:
  /// anchor = (anchor - mean) / variance. Its dot product with a page equals the product of both when standardised, up to a
  /// term that all pages share. A channel that hardly differs between pages, or that has a NaN, counts for nothing.
  template <executor Exec>
  static void standardise(pools::hierarchical_mean::summaries& summaries, Exec& exec) {
    table<float const> const pages = summaries.of(0);
    std::int64_t const dim = summaries.shape.head_dim;
    std::int64_t const heads = summaries.shape.kv_heads;
    bounds_table const spread{
        .data = summaries.spread.data(), .type = element_type::f32, .heads = heads, .units = 1, .head_dim = dim};
    for (std::int64_t layer = 0; layer < summaries.shape.layers; ++layer) {
      rows of_layer = pools::hierarchical_mean::as_rows(pages);
      of_layer.base += layer * heads * dim * size_of(element_type::f32);
      of_layer.heads = heads;
      of_layer.head_dim = dim;
      of_layer.head_stride = dim * size_of(element_type::f32);
      pool_mean_deviation(of_layer, {.unit_size = pages.rows, .first = 0, .last = pages.rows}, summaries.moments.data(), spread,
                          exec);
      float* const anchor = summaries.anchor.data() + layer * heads * dim;
      auto const* const high = reinterpret_cast<float const*>(summaries.spread.data());
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < dim; ++i) {
          float const above = high[2 * h * dim + i];
          float const below = high[(2 * h + 1) * dim + i];
          float const mean = (above + below) / 2;
          float const deviation = (above - below) / 2;
          float& channel = anchor[h * dim + i];
          channel = deviation > min_deviation * std::abs(mean) ? (channel - mean) / (deviation * deviation) : 0;
        }
      }
    }
  }
};

static_assert(scorer<anchor_affinity>);

}  // namespace kvpolicy::scorers
