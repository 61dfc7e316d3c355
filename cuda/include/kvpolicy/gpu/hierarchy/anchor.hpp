// The anchor that pages are ranked by.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/base/rows.hpp"

namespace kvpolicy::gpu::detail {

/// anchor(s, c): the mean of the recent pages' channel; standardised: its difference from the mean of all pages, by their
/// variance. One thread a channel.
struct page_anchor_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "page_anchor";
  struct arguments {
    buffer<float const> means;  ///< `[sequences, pages, dims]`
    std::int64_t sequence_stride = 0;
    std::int64_t dims = 0;
    per_sequence pages;
    buffer<std::int32_t const> due;
    std::int32_t recent = 1;
    bool standardised = false;
    float min_deviation = 0;
    buffer<float> anchor;  ///< `[sequences, dims]`
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const channel = index_in_grid(block);
    std::int64_t const s = block.y();
    std::int32_t const due = block.global(a.due)[s];
    if (due == 0 || channel >= a.dims) return;
    std::int64_t const pages = a.pages.of(block, block.y());
    if (pages == 0) return;
    auto const means = block.global(a.means);
    std::int64_t const from = s * a.sequence_stride + channel;
    std::int64_t const recent = a.recent < pages ? a.recent : pages;
    float sum = 0;
    for (std::int64_t p = pages - recent; p < pages; ++p) {
      float const x = means[from + p * a.dims];
      sum += x;
    }
    float anchor = sum / static_cast<float>(recent);
    if (a.standardised) {
      float mean = 0;
      float squares = 0;
      KVPOLICY_UNROLL_4
      for (std::int64_t p = 0; p < pages; ++p) {
        float const x = means[from + p * a.dims];
        float const before = p == 0 ? x : mean;
        mean = before + (x - before) / static_cast<float>(p + 1);
        squares += (x - before) * (x - mean);
      }
      float const deviation = sqrtf(squares / static_cast<float>(pages));
      anchor = deviation > a.min_deviation * fabsf(mean) ? (anchor - mean) / (deviation * deviation) : 0;
    }
    block.global(a.anchor)[s * a.dims + channel] = anchor;
  }
};

}  // namespace kvpolicy::gpu::detail
