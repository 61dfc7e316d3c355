// Budget adaptive: shares a layer's tokens out to the best units of any of its heads (AdaKV).
#pragma once

#include <algorithm>
#include <string>

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/concepts.hpp"
#include "kvpolicy/primitive/top_k.hpp"

namespace kvpolicy::budgets {

/// Shares a layer's tokens out to the best units of any of its heads (AdaKV, Feng et al. 2024, arXiv 2407.11550).
/// So lists of one layer differ in length.
struct adaptive {
  static constexpr bool reads_scores = true;

  tokens each{};     ///< tokens of a head, mean over the layer's heads
  double safe = .2;  ///< alpha: share of `each` that every head spends on its best units, 0 to 1

  bool relative() const noexcept { return each.relative(); }
  bool covers(cache_shape const& shape) const noexcept { return each.covers(shape); }
  std::int64_t most_tokens(cache_shape const& shape) const noexcept {
    return std::min(shape.max_tokens, shape.kv_heads * each.most_tokens(shape));
  }
  void check(cache_shape const& shape) const {
    each.check(shape);
    KVPOLICY_EXPECTS(safe >= 0 && safe <= 1, "a safe share of " + std::to_string(safe) + "; it must be in 0..1");
  }
  std::int64_t of(budget_request const& request) const noexcept { return each.of(request); }

  /// Gives every head its `safe` best units, then the layer's best of the rest. Ties: the lower head, then the lower index.
  template <executor Exec>
  void allocate(budget_request const& request, table<float const> scores, std::span<std::int32_t> units, Exec&) const {
    std::int64_t const kept = of(request);
    std::int64_t const floor =
        std::max<std::int64_t>(safe > 0 ? 1 : 0, static_cast<std::int64_t>(static_cast<double>(kept) * safe));
    std::int64_t const candidates = scores.columns;
    auto const own = std::min(candidates, std::max<std::int64_t>(0, floor - request.forced) / request.unit_size);
    std::int64_t const in_all =
        std::min(candidates, std::max<std::int64_t>(0, kept - request.forced) / request.unit_size) * scores.rows;
    std::ranges::fill(units, static_cast<std::int32_t>(own));
    std::int64_t left = in_all - own * scores.rows;
    // Finds the threshold of the joint choice bit by bit, over the units that are not safe already.
    auto const taken = [&](std::uint32_t from) {
      std::int64_t count = 0;
      for (std::int64_t r = 0; r < scores.rows; ++r) count += std::max<std::int64_t>(0, at_least(scores, r, from) - own);
      return count;
    };
    if (left <= 0) return;
    std::uint32_t threshold = 0;
    for (std::uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
      if (taken(threshold | bit) >= left) threshold |= bit;
    }
    for (std::int64_t r = 0; r < scores.rows; ++r) {
      std::int64_t const above = threshold == UINT32_MAX ? 0 : at_least(scores, r, threshold + 1);
      units[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(std::max(own, above));
      left -= units[static_cast<std::size_t>(r)] - own;
    }
    for (std::int64_t r = 0; r < scores.rows && left > 0; ++r) {
      std::int64_t const ties = std::max<std::int64_t>(0, at_least(scores, r, threshold) - units[static_cast<std::size_t>(r)]);
      std::int64_t const more = std::min(left, ties);
      units[static_cast<std::size_t>(r)] += static_cast<std::int32_t>(more);
      left -= more;
    }
  }

 private:
  static std::int64_t at_least(table<float const> scores, std::int64_t row, std::uint32_t threshold) noexcept {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < scores.columns; ++i) count += sortable_key(scores(row, i)) >= threshold ? 1 : 0;
    return count;
  }
};

static_assert(budgeter<adaptive>);

}  // namespace kvpolicy::budgets
