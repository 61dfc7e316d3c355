// Selector cascade: chooses pages coarse to fine, from grids over chunks to pages (CHESS, Algorithm 1).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/budgets/fractions.hpp"
#include "kvpolicy/pools/hierarchical_mean.hpp"
#include "kvpolicy/primitive/cascade.hpp"
#include "kvpolicy/score_input.hpp"
#include "kvpolicy/selectors/rank_scores.hpp"

namespace kvpolicy::selectors {

/// Chooses the best units of each level of a hierarchy, coarse to fine (CHESS, Algorithm 1).
/// A unit is live if its parent was kept. The children of dropped units are never scored. Protected pages are no candidates.
struct cascade {
  static constexpr scope coarsest = scope::request;
  static constexpr bool one_size = true;  ///< buffers are for the longest sequence at once: ranks add them up

  template <class Score, class Pool, class Segment, class Budget>
  static consteval bool fits() {
    static_assert(
        requires(Pool const& pool, summaries_of<Pool, Segment>& s, archetype::executor& exec) {
          pool.refresh(s, exec);
          s.levels;
        },
        "selectors::cascade takes a hierarchy, whose pool has refresh(summaries, exec) and levels: pools::hierarchical_mean");
    static_assert(!Budget::reads_scores && (budgets::shares_levels<Budget> || allocates<Budget>),
                  "selectors::cascade takes a budget that reads no scores: budgets::fractions, or a number of tokens");
    static_assert(makes_anchor<Score, Pool, Segment>,
                  "the scorer lacks anchor(summaries, exec) for this pool's summaries, which selectors::cascade calls");
    return true;
  }

  /// Follows Algorithm 1 to the letter, for comparison only. Protected pages compete with the others and use the fractions up.
  /// Scores of dead units become zero. Thresholds are quantiles (linear interpolation) over live and dead units together. A
  /// level may keep nothing.
  bool paper_literal = false;
  /// Raises a page's score to the score of the live page before it: an answer often stands behind the words that name it. Not
  /// in the paper; `paper_literal` ignores it.
  bool following = false;
  std::int32_t depth = 3;  ///< levels: 1 pages alone, 2 chunks and pages, 3 with grids

  /// Buffers of one call. With `paper_literal` the vectors have room for every page, otherwise none.
  struct scratch {
    cascade_scratch buffers;
    std::vector<float> scores;      ///< of a level's units
    std::vector<float> sorted;      ///< the same, ascending
    std::vector<std::int32_t> all;  ///< units of a level
    std::vector<char> live;         ///< 1: the unit's parent was kept
    std::vector<char> kept;         ///< 1: the unit is kept
    rank_scores shared;             ///< sums over ranks
  };

  template <class Keep>
  void check(Keep const& keep, cache_shape const& shape) const {
    KVPOLICY_EXPECTS(depth >= 1 && depth <= 3, "a hierarchy of " + std::to_string(depth) + " levels; it must have 1 to 3");
    if constexpr (requires { keep.budget.tokens + 0; }) {
      std::int64_t const tokens = keep.budget.tokens;  // 0: fractions
      if (tokens > 0) expect_room(tokens, keep.window.at(shape.max_tokens, shape.max_tokens, tokens).counted);
    }
  }

  template <class Keep>
  scratch start(Keep const& keep, cache_shape const& shape) const {
    auto const units = static_cast<std::size_t>(max_ranges(keep, shape));
    scratch made{.buffers = cascade_scratch(static_cast<std::int64_t>(units)),
                 .scores = {},
                 .sorted = {},
                 .all = {},
                 .live = {},
                 .kept = {},
                 .shared = rank_scores(keep.segment, shape.max_tokens, static_cast<std::size_t>(depth))};
    if (paper_literal) {
      made.scores = made.sorted = std::vector<float>(units);
      made.live = made.kept = std::vector<char>(units);
      made.all.resize(units);
    }
    return made;
  }

  template <class Keep>
  std::int64_t max_ranges(Keep const& keep, cache_shape const& shape) const {
    std::int64_t const size = keep.segment.unit_size();
    return (shape.max_tokens + size - 1) / size;
  }

  /// Calls emit(0, begin, end) for each kept page, ascending; begin and end are tokens.
  /// On one of several ranks, all ranks take part in a sum. So an early return before the sum must depend only on tokens and
  /// parameters, which are the same on every rank.
  template <class Keep, class Input, executor Exec, class Emit>
  void select(Keep const& keep, scratch& s, Input& input, protected_tokens const& safe, Exec& exec, Emit emit) const {
    auto& summaries = input.summaries;
    keep.pool.refresh(summaries, exec);
    if (summaries.units(0) == 0) return;
    std::span<float const> const anchor = keep.score.anchor(summaries, exec);
    std::array const fractions = fractions_of(keep.budget);
    std::array all{cascade_level{summaries.of(2), summaries.levels[2].fan_out, fractions[2]},
                   cascade_level{summaries.of(1), summaries.levels[1].fan_out, fractions[1]},
                   cascade_level{summaries.of(0), 1, fractions[0]}};
    std::span const levels = std::span(all).last(static_cast<std::size_t>(depth));
    budget_request const request{.shape = input.view.shape(), .tokens = input.tokens, .prompt = input.prompt_tokens};
    if (!plan(keep, levels, safe, request, exec)) return;
    auto const local = [&](std::size_t l, std::span<std::int32_t const> units, std::span<float> out) {
      score_dot(anchor, levels[l].vectors, units, out, exec);
    };
    auto const with_next = [&](auto const& score) {
      return [&](std::size_t l, std::span<std::int32_t const> units, std::span<float> out) {
        score(l, units, out);
        if (!following || paper_literal || l + 1 < levels.size()) return;
        for (std::size_t i = units.size(); i-- > 1;) {
          if (units[i] == units[i - 1] + 1 && !(out[i] >= out[i - 1])) out[i] = out[i - 1];
        }
      };
    };
    auto const pages = [&] {
      if constexpr (summing_executor<Exec>) {
        s.shared.sum(levels, input.tokens, s.buffers.live, local, exec);
        auto const given = [&](std::size_t l, std::span<std::int32_t const> units, std::span<float> out) {
          for (std::size_t i = 0; i < units.size(); ++i) out[i] = s.shared.of(l)[units[i]];
        };
        return chosen(with_next(given), levels, s, exec);
      } else {
        return chosen(with_next(local), levels, s, exec);
      }
    }();
    for (std::int32_t const page : pages) emit(0, page * summaries.page, (page + 1) * summaries.page);
  }

  /// Sets what each level may keep, from the protected tokens and the budget.
  /// @param keep  the rule
  /// @param levels  the finest `depth` levels, coarse to fine, with vectors, fan-out and fractions; receives the limits
  /// @param safe  the protected tokens
  /// @param request  shape, tokens and prompt of the choice; the window's fields are filled in here
  /// @param exec  runs the budget's primitives
  /// @return false if no page can be chosen
  template <class Keep, executor Exec>
  bool plan(Keep const& keep, std::span<cascade_level> levels, protected_tokens const& safe, budget_request const& request,
            Exec& exec) const {
    std::int64_t const page = keep.segment.page;
    if (!paper_literal) {
      if (safe.sink_end >= safe.recent_begin) return false;
      limit(levels, safe.sink_end / page, safe.recent_begin / page);
    }
    std::int64_t left = 0;
    if constexpr (budgets::shares_levels<typename Keep::budget_type>) {
      if (keep.budget.tokens == 0) return true;
      left = (keep.budget.tokens - safe.counted) / page;
    } else {
      budget_request behind = request;
      behind.forced = safe.counted;
      behind.recent = safe.recent;
      behind.unit_size = page;
      std::int32_t units = 0;
      keep.budget.allocate(behind, {}, {&units, 1}, exec);
      left = units;
    }
    if (left >= 1) spend(left, levels);
    return left >= 1;
  }

  /// Returns the fractions of the live units that a budget keeps.
  /// @param budget  the rule's budget
  /// @return fractions of pages, chunks and grids; 1 each for a budget without fractions
  template <class Budget>
  static std::array<float, 3> fractions_of(Budget const& budget) noexcept {
    if constexpr (budgets::shares_levels<Budget>) return {budget.pages, budget.chunks, budget.grids};
    else return {1, 1, 1};
  }

 private:
  /// Makes pages [first, last) the candidates, and of the coarser levels every unit that holds one.
  static void limit(std::span<cascade_level> levels, std::int64_t first, std::int64_t last) noexcept {
    for (std::size_t l = levels.size(); l-- > 0;) {
      first /= levels[l].fan_out;
      last = (last + levels[l].fan_out - 1) / levels[l].fan_out;
      levels[l].first = first;
      levels[l].last = last;
    }
  }

  /// Lets the finest level keep `pages` pages at most. Each coarser level keeps the same share of its live units, and enough to
  /// hold these pages.
  void spend(std::int64_t pages, std::span<cascade_level> levels) const noexcept {
    cascade_level& finest = levels.back();
    std::int64_t const candidates = std::min(finest.last, finest.vectors.rows) - finest.first;
    double const share = std::min(1.0, static_cast<double>(pages) / static_cast<double>(candidates));
    std::int64_t needed = pages;
    for (std::size_t l = levels.size() - 1; l-- > 0;) {
      levels[l].fraction = static_cast<float>(std::pow(share, 1.0 / depth));
      needed = (needed + levels[l].fan_out - 1) / levels[l].fan_out + 2;  // the first and the last may hold few candidates
      levels[l].least = needed;
    }
    finest.fraction = 1;
    finest.most = pages;
  }

  template <class Score, executor Exec>
  std::span<std::int32_t const> chosen(Score score, std::span<cascade_level const> levels, scratch& s, Exec& exec) const {
    return paper_literal ? literal(score, levels, s) : cascade_by(score, levels, s.buffers, exec);
  }

  template <class Score>
  static std::span<std::int32_t const> literal(Score score, std::span<cascade_level const> levels, scratch& s) {
    std::int64_t fan_out = 0;
    for (std::size_t l = 0; l < levels.size(); ++l) {
      cascade_level const& level = levels[l];
      std::int64_t const units = level.vectors.rows;
      auto const count = static_cast<std::size_t>(units);
      for (std::size_t u = 0; u < count; ++u) {
        s.all[u] = static_cast<std::int32_t>(u);
        s.live[u] = fan_out == 0 || s.kept[u / static_cast<std::size_t>(fan_out)] != 0;
      }
      score(l, std::span<std::int32_t const>(s.all).first(count), std::span(s.scores));
      for (std::size_t u = 0; u < count; ++u) s.scores[u] *= s.live[u] != 0 ? 1.0f : 0.0f;
      float const threshold = quantile(std::span(s.scores).first(count), 1.0 - static_cast<double>(level.fraction), s.sorted);
      for (std::size_t u = 0; u < count; ++u) s.kept[u] = s.live[u] != 0 && s.scores[u] >= threshold;
      fan_out = level.fan_out;
    }
    auto const units = static_cast<std::size_t>(levels.back().vectors.rows);
    std::size_t kept = 0;
    for (std::size_t u = 0; u < units; ++u) {
      if (s.kept[u] != 0) s.all[kept++] = static_cast<std::int32_t>(u);
    }
    return std::span(s.all).first(kept);
  }

  static float quantile(std::span<float const> values, double q, std::vector<float>& sorted) {
    std::ranges::copy(values, sorted.begin());
    auto const end = sorted.begin() + static_cast<std::ptrdiff_t>(values.size());
    std::sort(sorted.begin(), end, [](float a, float b) { return sortable_key(a) < sortable_key(b); });
    double place = q * static_cast<double>(values.size() - 1);
    // The fraction is a decimal that was rounded to float: a place that should be a whole number is one.
    if (double const whole = std::round(place); std::abs(place - whole) < 1e-6 * static_cast<double>(values.size()))
      place = whole;
    auto const low = static_cast<std::size_t>(place);
    std::size_t const high = std::min(low + 1, values.size() - 1);
    return static_cast<float>(sorted[low] + (place - std::floor(place)) * (static_cast<double>(sorted[high]) - sorted[low]));
  }
};

static_assert(part<cascade>);

}  // namespace kvpolicy::selectors
