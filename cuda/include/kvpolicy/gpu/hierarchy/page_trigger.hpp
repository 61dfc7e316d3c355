// When a choice is made anew: the entropies of a page of tokens.
#pragma once

#include "kvpolicy/gpu/base/rows.hpp"

namespace kvpolicy::gpu::detail {

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
    bool both = false;
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
    bool const sure = static_cast<float>(mean) <= a.most_mean;
    bool const even = variance <= a.max_variance;
    bool const calm = a.both ? sure || even : sure && even;
    block.global(a.state.fired)[s] = closes && !calm ? 1 : 0;
    counts[s] = closes ? 0 : count;
    means[s] = closes ? 0 : mean;
    sums[s] = closes ? 0 : squares;
  }
};

}  // namespace kvpolicy::gpu::detail
