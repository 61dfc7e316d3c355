// Select: each list's best units, within its budget; what the window protects is forced in and counts.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::select {

struct top {
  /// Buffers of one call: scores `[lists, units]`, indices `[lists, most kept]`.
  struct scratch {
    std::vector<float> scores;
    std::vector<std::int32_t> indices;
    std::vector<std::int32_t> k;
    std::int64_t units = 0;
    std::int64_t most = 0;
  };

  /// Throws invalid_value where the budget can't hold what the window protects.
  template <class Keep>
  void check(Keep const& keep, cache_shape const& shape) const {
    std::int64_t const size = keep.segment.unit_size();
    std::int64_t const forced = forced_units(keep, shape.max_tokens);
    KVPOLICY_EXPECTS(most_units(keep, shape) >= forced,
                     "a budget of " + std::to_string(keep.budget.most_tokens(shape)) + " tokens can't hold the " +
                         std::to_string(forced * size) +
                         " that its window always keeps; raise the budget or shrink the window");
  }

  template <class Keep>
  scratch start(Keep const& keep, cache_shape const& shape, std::int64_t lists) const {
    std::int64_t const size = keep.segment.unit_size();
    scratch made;
    made.units = (shape.max_tokens + size - 1) / size;
    made.most = std::min(made.units, most_units(keep, shape));
    made.scores.resize(static_cast<std::size_t>(lists * made.units));
    made.indices.resize(static_cast<std::size_t>(lists * made.most));
    made.k.resize(static_cast<std::size_t>(lists));
    return made;
  }

  /// The most units that a list keeps, protected ones included.
  template <class Keep>
  std::int64_t most_units(Keep const& keep, cache_shape const& shape) const {
    return keep.budget.most_tokens(shape) / keep.segment.unit_size();
  }

  /// Calls emit(list, units) with each list's scored units, ascending; none of them protected.
  template <class Keep, class Input, executor Exec, class Emit>
  void select(Keep const& keep, scratch& s, Input& input, protected_tokens const& safe, std::int64_t lists, Exec& exec,
              Emit emit) const {
    std::int64_t const size = keep.segment.unit_size();
    std::int64_t const first = safe.sink_end / size;
    std::int64_t const candidates = safe.recent_begin / size - first;
    std::int64_t const k = std::clamp<std::int64_t>(s.most - forced_units(keep, input.tokens), 0, candidates);
    table<std::int32_t> const indices{s.indices.data(), lists, k, k};
    if (k > 0 && k < candidates) {
      table<float> const scores{s.scores.data(), lists, first + candidates, s.units};
      keep.score.score(input, scores, exec);
      std::ranges::fill(s.k, static_cast<std::int32_t>(k));
      top_k(table<float const>{scores.data + first, lists, candidates, s.units}, s.k, indices, exec);
    }
    for (std::int64_t list = 0; list < lists; ++list) {
      std::span const units(indices.row(list), static_cast<std::size_t>(k));
      for (std::int64_t i = 0; i < k; ++i) {
        std::int32_t& unit = units[static_cast<std::size_t>(i)];
        unit = static_cast<std::int32_t>(first + (k < candidates ? unit : i));
      }
      emit(list, std::span<std::int32_t const>(units));
    }
  }

 private:
  template <class Keep>
  static std::int64_t forced_units(Keep const& keep, std::int64_t tokens) {
    std::int64_t const size = keep.segment.unit_size();
    protected_tokens const safe = keep.window.at(tokens);
    return safe.sink_end / size + (tokens + size - 1) / size - safe.recent_begin / size;
  }
};

static_assert(part<top>);

}  // namespace kvpolicy::select
