// Primitive cascade: coarse-to-fine selection that never reads the children of dropped units.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/primitive/top_k.hpp"

namespace kvpolicy {

/// One level of a hierarchy. The children of unit u are units [u * fan_out, (u + 1) * fan_out) of the next finer level, as far
/// as these exist.
struct cascade_level {
  table<float const> vectors;     ///< `[units, dims]`
  std::int64_t fan_out = 1;       ///< children of a unit; 1 at the finest level
  float fraction = 1;             ///< share of the live units that is kept, 0 < fraction <= 1
  std::int64_t least = 1;         ///< fewest units that are kept, if so many are live
  std::int64_t most = INT64_MAX;  ///< most units that are kept; less than 1 counts as 1
  std::int64_t first = 0;         ///< units [first, last) can be kept, all others are dead
  std::int64_t last = INT64_MAX;
};

/// Buffers of a cascade.
struct cascade_scratch {
  std::vector<float> scores;
  std::vector<std::int32_t> live;
  std::vector<std::int32_t> kept;

  /// Allocates all buffers.
  /// @param max_units  units of the largest level
  explicit cascade_scratch(std::int64_t max_units = 0)
      : scores(static_cast<std::size_t>(max_units)), live(scores.size()), kept(scores.size()) {}
};

/// Returns max(1, ceil(fraction * live)), or 0 if `live` is 0.
/// @param fraction  share of the live units
/// @param live  number of live units
/// @return a number of units
inline std::int64_t fraction_of(float fraction, std::int64_t live) noexcept {
  if (live == 0) return 0;
  // The fraction is a decimal that was rounded to float. The rounding must not add a unit.
  auto const exact = static_cast<double>(fraction) * static_cast<double>(live);
  auto const kept = static_cast<std::int64_t>(std::ceil(exact - 1e-6 * static_cast<double>(live)));
  return std::clamp<std::int64_t>(kept, 1, live);
}

/// Returns how many live units a level keeps, by its fraction, `least` and `most`.
/// @param level  the level
/// @param live  number of its live units
/// @return a number of units, at most `live`
inline std::int64_t kept_units(cascade_level const& level, std::int64_t live) noexcept {
  std::int64_t const wanted = std::max(fraction_of(level.fraction, live), level.least);
  return std::min({wanted, std::max<std::int64_t>(level.most, 1), live});
}

/// Keeps the best live units of each level, coarse to fine (CHESS, Algorithm 1; dead units count as -inf, see docs/methods.md).
/// A unit is live if it is in its level's [first, last) and its parent was kept. The result is deterministic: ties go to the
/// smaller index.
/// @param score  `score(level index, units, out)` writes out[i], the score of units[i]. A coarse level that keeps all of
///               its live units is not scored
/// @param levels  coarsest first
/// @param scratch  buffers for at least the largest level's units
/// @param exec  the executor
/// @return the kept units of the finest level, ascending, in `scratch`
template <class Score, class Exec>
std::span<std::int32_t const> cascade_by(Score score, std::span<cascade_level const> levels, cascade_scratch& scratch,
                                         Exec& exec) {
  std::int64_t live = 0;
  auto const add_live = [&](cascade_level const& level, std::int64_t begin, std::int64_t end) {
    end = std::min({end, level.last, level.vectors.rows});
    for (std::int64_t u = std::max(begin, level.first); u < end; ++u)
      scratch.live[static_cast<std::size_t>(live++)] = static_cast<std::int32_t>(u);
  };
  if (!levels.empty()) add_live(levels.front(), 0, INT64_MAX);
  for (std::size_t l = 0; l < levels.size(); ++l) {
    cascade_level const& level = levels[l];
    std::array const k{static_cast<std::int32_t>(kept_units(level, live))};
    std::span const units = std::span(scratch.live).first(static_cast<std::size_t>(live));
    if (k[0] < live || l + 1 == levels.size()) {
      score(l, std::span<std::int32_t const>(units), std::span(scratch.scores));
      top_k(table<float const>{scratch.scores.data(), 1, live, live}, k,
            table<std::int32_t>{scratch.kept.data(), 1, k[0], k[0]}, exec);
      for (std::int32_t i = 0; i < k[0]; ++i) {
        auto& kept = scratch.kept[static_cast<std::size_t>(i)];
        kept = units[static_cast<std::size_t>(kept)];
      }
    } else {
      std::ranges::copy(units, scratch.kept.begin());
    }
    if (l + 1 == levels.size()) return std::span(scratch.kept).first(static_cast<std::size_t>(k[0]));
    live = 0;
    for (std::int32_t i = 0; i < k[0]; ++i) {
      std::int64_t const first = scratch.kept[static_cast<std::size_t>(i)] * level.fan_out;
      add_live(levels[l + 1], first, first + level.fan_out);
    }
  }
  return {};
}

/// Runs cascade_by with the dot products of the anchor and the units' vectors. Reads vectors of live units only.
/// @param anchor  `[dims]`
/// @param levels, scratch, exec  as in cascade_by
/// @return the kept units of the finest level, ascending, in `scratch`
template <class Exec>
std::span<std::int32_t const> cascade(std::span<float const> anchor, std::span<cascade_level const> levels,
                                      cascade_scratch& scratch, Exec& exec) {
  auto const score = [&](std::size_t l, std::span<std::int32_t const> units, std::span<float> out) {
    score_dot(anchor, levels[l].vectors, units, out, exec);
  };
  return cascade_by(score, levels, scratch, exec);
}

}  // namespace kvpolicy
