// Scorer upper_bound: scores a page by the largest q.k that its keys could have (Quest, sec. 3.3).
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/primitive/top_k.hpp"

namespace kvpolicy::scorers {

/// Scores a page by the largest q.k that any of its keys could have (Quest, sec. 3.3). Needs a pool with bounds
/// (pools::bounds).
struct upper_bound {
  static constexpr signals needs = signals::queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::units;

  group_merge merged = group_merge::mean;  ///< merges the query heads of a KV head
  /// Channels that count, those in which the group's query heads are largest: the sums of their sizes (RocketKV); 0: all.
  std::int32_t channels = 0;

  /// Buffers of one call.
  struct memory : no_memory {
    std::vector<float> queries;       ///< `[q_heads, head_dim]`, zero in the channels that don't count
    std::vector<float> sizes;         ///< `[head_dim]`
    std::vector<std::int32_t> order;  ///< `[head_dim]`, by falling size
  };
  memory start(cache_shape const& shape) const {
    KVPOLICY_EXPECTS(channels >= 0, "channels is " + std::to_string(channels) + "; it can't be negative");
    memory made;
    if (channels == 0 || channels >= shape.head_dim) return made;
    made.queries.resize(static_cast<std::size_t>(shape.q_heads * shape.head_dim));
    made.sizes.resize(static_cast<std::size_t>(shape.head_dim));
    made.order.resize(static_cast<std::size_t>(shape.head_dim));
    return made;
  }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    score_bounds(largest(input), input.summaries.of(input.layer).of(input.heads), out.columns, merged, out, exec);
  }

 private:
  /// The queries, with zeros in the channels that don't count: bounds of any size add nothing there.
  template <class Input>
  query_heads largest(Input const& input) const {
    memory& m = input.memory;
    query_heads const& queries = input.queries;
    if (m.queries.empty()) return queries;
    auto const dim = std::ssize(m.sizes);
    std::int64_t const group = queries.heads / input.heads.count;
    for (std::int64_t h = 0; h < input.heads.count; ++h) {
      std::ranges::fill(m.sizes, 0.0f);
      for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
        for (std::int64_t d = 0; d < dim; ++d) m.sizes[static_cast<std::size_t>(d)] += std::abs(queries.head(q)[d]);
      }
      std::iota(m.order.begin(), m.order.end(), 0);
      std::ranges::sort(m.order, {},
                        [&](std::int32_t i) { return std::pair(~sortable_key(m.sizes[static_cast<std::size_t>(i)]), i); });
      for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
        float* const to = m.queries.data() + q * dim;
        std::fill_n(to, dim, 0.0f);
        for (std::int32_t i = 0; i < channels; ++i) {
          std::int32_t const d = m.order[static_cast<std::size_t>(i)];
          to[d] = queries.head(q)[d];
        }
      }
    }
    return {m.queries.data(), queries.heads, dim, queries.scale};
  }
};

static_assert(scorer<upper_bound>);

}  // namespace kvpolicy::scorers
