// Select: the scores of a hierarchy's units, summed over ranks that hold a part of the heads or layers each.
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

/// A score is a dot product over layers and heads, and its anchor a matter of each channel: every rank scores all units by its
/// own channels, and the sums are the scores. What is summed has one shape, from max_tokens: it does not depend on the
/// tokens that are there, nor on what a rank holds. Beyond the scores it says which step this is for, so that ranks that are
/// not in step are found out.
class rank_scores {
 public:
  /// Of the finest `depth` levels. Allocates.
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

  /// Scores every unit by score(level index, units, out), coarse to fine, and sums over the ranks. `all` has room for the
  /// indices of the largest level. Collective; throws what the executor's sum throws, and error where another rank chooses
  /// at another number of tokens.
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
  }

  /// The sums of a level, by unit.
  float const* of(std::size_t level) const noexcept { return values_.data() + first_[level]; }

 private:
  static constexpr std::size_t steps = 62;  // of the number of tokens, an int32, each bit's zeros and ones

  std::array<std::size_t, 4> first_{};  ///< of each level, coarse to fine
  std::vector<float> values_;
};

}  // namespace kvpolicy::selectors
