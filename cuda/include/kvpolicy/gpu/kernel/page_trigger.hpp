// When a choice is made anew, and by what: pages' entropies, and the anchor that pages are ranked by.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/rows.hpp"

namespace kvpolicy::gpu {

/// Entropies collected into pages, of each sequence (triggers::entropy).
struct page_trigger {
  buffer<double> mean;
  buffer<double> squares;
  buffer<std::int32_t> count;
  buffer<std::int32_t> fired;
};

struct page_trigger_body : no_shared {
  static constexpr unsigned threads = 32;
  static constexpr char const* name = "page_trigger";
  struct arguments {
    page_trigger state;
    buffer<float const> entropy;  ///< `[sequences]` of this step
    per_sequence tokens;
    std::int64_t sequences = 0;
    std::int32_t page = 1;
    float most_mean = 0;
    float max_variance = 0;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const s = index_in_grid(block);
    if (s >= a.sequences) return;
    std::int64_t const tokens = a.tokens.of(block, static_cast<unsigned>(s));
    if (tokens == 0) return;
    float const observed = block.global(a.entropy)[s];
    auto const means = block.global(a.state.mean);
    auto const sums = block.global(a.state.squares);
    auto const counts = block.global(a.state.count);
    std::int32_t const before = counts[s];
    double mean = means[s];
    double squares = sums[s];
    std::int32_t count = before + 1;
    double const delta = static_cast<double>(observed) - mean;
    mean += delta / count;
    squares += delta * (static_cast<double>(observed) - mean);
    bool const closes = tokens % a.page == 0;
    auto const variance = static_cast<float>(squares / count);
    bool const calm = static_cast<float>(mean) <= a.most_mean && variance <= a.max_variance;
    block.global(a.state.fired)[s] = closes && !calm ? 1 : 0;
    counts[s] = closes ? 0 : count;
    means[s] = closes ? 0 : mean;
    sums[s] = closes ? 0 : squares;
  }
};

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

}  // namespace kvpolicy::gpu
