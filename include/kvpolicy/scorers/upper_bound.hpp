// Scorer upper_bound: scores a page by the largest q.k that its keys could have (Quest, sec. 3.3).
#pragma once

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/primitive/score.hpp"

namespace kvpolicy::scorers {

/// Scores a page by the largest q.k that any of its keys could have (Quest, sec. 3.3). Needs a pool with bounds
/// (pools::bounds).
struct upper_bound {
  static constexpr signals needs = signals::queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::units;

  group_merge merged = group_merge::mean;  ///< merges the query heads of a KV head

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    score_bounds(input.queries, input.summaries.of(input.layer).of(input.heads), out.columns, merged, out, exec);
  }
};

static_assert(scorer<upper_bound>);

}  // namespace kvpolicy::scorers
