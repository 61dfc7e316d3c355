// Budget mass: keeps the fewest units that hold all but a share of the attention.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::budgets {

/// Keeps the fewest units that hold all but a share of the attention, as far as the scores say.
/// Every list gets its own number of units: a head with spread attention reads more than a head that looks at one place. So
/// lists of one layer differ in length. The estimate leaves out protected units, which are read in any case.
struct mass {
  static constexpr bool reads_scores = true;
  static constexpr std::int64_t max_units = 16384;  ///< most units of a list

  /// What the scores are. weights: attention, at least 0 (window_attention, last_attention). logits: q.k or its bounds
  /// (upper_bound); their softmax over all units, scaled by 1 / sqrt(head_dim), is the attention.
  enum class kind : std::uint8_t { weights, logits };
  friend constexpr auto names_of(kind) noexcept { return std::array{"weights", "logits"}; }

  double eps = .05;                ///< most share of the attention that is left out, 0 to below 1
  kind of_scores = kind::weights;  ///< what the scorer writes
  std::int32_t least = 64;         ///< fewest tokens of a list, protected ones included
  std::int32_t most = 1024;        ///< most tokens of a list, protected ones included

  bool relative() const noexcept { return false; }
  std::int64_t most_tokens(cache_shape const& shape) const noexcept { return std::min<std::int64_t>(most, shape.max_tokens); }
  std::int64_t of(budget_request const&) const noexcept { return most; }
  void check(cache_shape const&) const {
    KVPOLICY_EXPECTS(eps >= 0 && eps < 1, "eps is " + std::to_string(eps) + "; it must be at least 0 and below 1");
    KVPOLICY_EXPECTS(least > 0 && most >= least, "least is " + std::to_string(least) + " and most is " + std::to_string(most) +
                                                     " tokens; least must be above 0, and most at least least");
  }

  /// Takes units by falling score until their weights sum to 1 - eps of all; NaN weighs nothing.
  /// @throws invalid_value if there are more than max_units units
  template <executor Exec>
  void allocate(budget_request const& request, table<float const> scores, std::span<std::int32_t> units, Exec&) const {
    std::int64_t const columns = scores.columns;
    KVPOLICY_EXPECTS(columns <= max_units, "a budget by mass over " + std::to_string(columns) + " units; it takes up to " +
                                               std::to_string(max_units) + ": make units longer");
    auto const units_of = [&](std::int32_t tokens) {
      return std::clamp<std::int64_t>((tokens - request.forced) / request.unit_size, 0, columns);
    };
    double const scale = 1 / std::sqrt(static_cast<double>(request.shape.head_dim));
    std::array<float, max_units> weight;
    for (std::int64_t r = 0; r < scores.rows; ++r) {
      std::span const row = std::span(weight).first(static_cast<std::size_t>(columns));
      weigh({scores.row(r), row.size()}, scale, row);
      units[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(std::clamp(fewest(row), units_of(least), units_of(most)));
    }
  }

 private:
  void weigh(std::span<float const> scores, double scale, std::span<float> out) const {
    float top = -std::numeric_limits<float>::infinity();
    for (float const s : scores) top = s > top ? s : top;
    for (std::size_t u = 0; u < scores.size(); ++u) {
      float const s = scores[u];
      if (std::isinf(top)) out[u] = s == top && top > 0 ? 1 : 0;
      else if (of_scores == kind::weights) out[u] = s > 0 ? s : 0;
      else out[u] = s <= top ? static_cast<float>(std::exp((static_cast<double>(s) - static_cast<double>(top)) * scale)) : 0;
    }
  }

  /// Finds the threshold bit by bit: the bits of a weight rise with its value.
  std::int64_t fewest(std::span<float const> weights) const {
    auto const key = [](float w) { return std::bit_cast<std::uint32_t>(w); };
    auto const sum_from = [&](std::uint32_t threshold) {
      double sum = 0;
      for (float const w : weights) sum += key(w) >= threshold ? static_cast<double>(w) : 0;
      return sum;
    };
    double const wanted = (1 - eps) * sum_from(0);
    std::uint32_t threshold = 0;
    for (std::uint32_t bit = 1u << 30; bit != 0; bit >>= 1) {
      if (sum_from(threshold | bit) >= wanted) threshold |= bit;
    }
    double sum = 0;
    std::int64_t count = 0;
    for (float const w : weights) {
      if (key(w) <= threshold) continue;
      sum += static_cast<double>(w);
      ++count;
    }
    double const each = static_cast<double>(std::bit_cast<float>(threshold));
    if (sum >= wanted || each <= 0) return count;
    return count + static_cast<std::int64_t>(std::ceil((wanted - sum) / each - 1e-9));
  }
};

static_assert(budgeter<mass>);

}  // namespace kvpolicy::budgets
