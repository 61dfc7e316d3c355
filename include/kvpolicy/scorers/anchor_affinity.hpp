// Score: dot product with the mean of the recent pages' vectors (CHESS, eqs. 3 and 4).
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/pools/hierarchical_mean.hpp"

namespace kvpolicy::scorers {

struct anchor_affinity {
  static constexpr signals needs = signals::keys;
  static constexpr scope granularity = scope::request;
  static constexpr scored of = scored::units;

  std::int32_t recent_pages = 8;  ///< W; the selector's window protects the same pages
  /// Count each channel by its difference from the mean page, in units of its deviation over pages. Keys have much in common,
  /// and a few channels are large: without, these alone rank the pages.
  bool standardised = false;

  static constexpr float min_deviation = 1e-3f;  ///< of a channel, by its mean: below it is the rounding of 16-bit keys

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  /// The anchor, `[dims]`, in the summaries' own buffer.
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
  /// anchor = (anchor - mean) / variance: its dot product with a page is that of both standardised, but for what is the same
  /// for all pages. A channel that is all but the same in all pages, or has a NaN, counts for nothing.
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
