// Budget fractions: keeps a fraction of the live units of each level of a hierarchy (CHESS, sec. 3.2).
#pragma once

#include <concepts>
#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::budgets {

/// Keeps a fraction of the live units of each level of a hierarchy (CHESS, sec. 3.2), for selectors::cascade.
struct fractions {
  static constexpr bool reads_scores = false;

  float grids = .5f;   ///< fraction of the grids, above 0, at most 1
  float chunks = .2f;  ///< fraction of the kept grids' chunks
  float pages = .1f;   ///< fraction of the kept chunks' pages
  /// Tokens in all, protected ones included, in place of the fractions; 0: the fractions count. The pages get the tokens that
  /// the window leaves. Each coarser level keeps the `depth`-th root of the pages' share, and enough units to hold these pages.
  std::int32_t tokens = 0;

  bool relative() const noexcept { return tokens == 0; }
  std::int64_t most_tokens(cache_shape const& shape) const noexcept { return shape.max_tokens; }

  std::int64_t of(budget_request const& request) const noexcept { return request.tokens; }

  void check(cache_shape const&) const {
    KVPOLICY_EXPECTS(tokens >= 0, "a budget of " + std::to_string(tokens) + " tokens; it can't be negative");
    for (float const fraction : {grids, chunks, pages}) {
      KVPOLICY_EXPECTS(fraction > 0 && fraction <= 1,
                       "a fraction of " + std::to_string(fraction) + " of a level's units; it must be above 0 and at most 1");
    }
  }
};

/// A budget with a fraction for each level of a hierarchy.
/// Requires: members `grids`, `chunks` and `pages`. Model: fractions. Not a model: budgets::tokens.
template <class Budget>
concept shares_levels = requires(Budget const& budget) {
  { budget.grids + budget.chunks + budget.pages } -> std::convertible_to<float>;
};

static_assert(budgeter<fractions> && shares_levels<fractions>);

}  // namespace kvpolicy::budgets
