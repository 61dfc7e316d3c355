// Class rank_scores: sums the scores of a hierarchy's units over ranks, for selectors::cascade.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/primitive/cascade.hpp"
#include "kvpolicy/segments/hierarchy.hpp"

namespace kvpolicy::selectors {

/// Sums the scores of a hierarchy's units over ranks, each of which holds a part of the heads or layers.
/// A score is a dot product over the channels of all layers and heads, so each rank scores every unit by the channels it holds,
/// and the sums are the scores. The summed array has one size, which follows from max_tokens alone. Beside the scores it
/// carries the number of tokens, which uncovers ranks at different steps.
class rank_scores {
 public:
  /// Makes room for the scores of the finest `depth` levels. Allocates.
  /// @param units  the hierarchy: tokens of a page, pages of a chunk, chunks of a grid
  /// @param max_tokens  tokens that the cache can hold
  /// @param depth  levels, 1 to 3
  rank_scores(segments::hierarchy const& units, std::int64_t max_tokens, std::size_t depth) {
    std::array<std::int64_t, 3> most{};
    std::int64_t count = max_tokens;
    for (std::size_t const fine : {2u, 1u, 0u}) {
      std::int64_t const size = fine == 2 ? units.page : fine == 1 ? units.pages_per_chunk : units.chunks_per_grid;
      most[fine] = count = (count + size - 1) / size;
    }
    std::size_t first = 0;
    for (std::size_t l = 0; l < depth; ++l) {
      first_[l] = first;
      first += static_cast<std::size_t>(most[3 - depth + l]);
    }
    first_[depth] = first;
    values_.resize(first + steps);
  }

  /// Scores every unit, coarse to fine, and sums the scores over the ranks. Collective: every rank must call it.
  /// @param levels  the finest `depth` levels, coarse to fine
  /// @param tokens  tokens of the choice, the same on every rank
  /// @param all  room for the indices of the largest level; overwritten
  /// @param score  `score(level index, units, out)` writes the units' scores by this rank's channels
  /// @param exec  a summing_executor
  /// @throws error if another rank chooses at another number of tokens, or the sum is not of every rank; also what the
  ///         executor's sum throws
  template <class Score, class Exec>
  void sum(std::span<cascade_level const> levels, std::int64_t tokens, std::span<std::int32_t> all, Score score, Exec& exec) {
    std::ranges::fill(values_, 0.0f);
    for (std::size_t l = 0; l < levels.size(); ++l) {
      std::span const units = all.first(static_cast<std::size_t>(levels[l].vectors.rows));
      std::iota(units.begin(), units.end(), 0);
      score(l, std::span<std::int32_t const>(units), std::span(values_).subspan(first_[l], units.size()));
    }
    std::span const step = std::span(values_).last(steps);
    for (std::size_t bit = 0; bit < steps / 2; ++bit) step[2 * bit + ((tokens >> bit) & 1)] = 1;
    exec.sum(std::span(values_));
    for (std::size_t bit = 0; bit < steps / 2; ++bit) {
      if (step[2 * bit] == 0 || step[2 * bit + 1] == 0) continue;
      throw error("this rank chooses among " + std::to_string(tokens) +
                  " tokens, another rank among more or fewer; every rank must call the same verbs in the same order");
    }
    if constexpr (requires { exec.ranks(); }) {
      float const counted = std::max(step[0], step[1]);  // to which each rank added 1
      if (counted == static_cast<float>(exec.ranks())) return;
      throw error("a sum over " + std::to_string(exec.ranks()) + " ranks counted " + std::to_string(counted) +
                  " of them; the communicator's sum() adds every rank's values once, in place");
    }
  }

  /// Returns a level's sums.
  /// @param level  index in `levels` of the last sum()
  /// @return `[units of the level]`, valid until the next sum()
  float const* of(std::size_t level) const noexcept { return values_.data() + first_[level]; }

 private:
  static constexpr std::size_t steps = 62;  // of the number of tokens, an int32, each bit's zeros and ones

  std::array<std::size_t, 4> first_{};  ///< of each level, coarse to fine
  std::vector<float> values_;
};

}  // namespace kvpolicy::selectors
