// Budget tokens: gives every list a number of tokens, or a share of the sequence.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::budgets {

/// Gives every list a number of tokens, or a share of the sequence; protected tokens included.
struct tokens {
  static constexpr bool reads_scores = false;

  std::int32_t count = 512;       ///< tokens of a list
  std::optional<double> ratio{};  ///< fraction *removed*, 0 to below 1, in place of `count`
  /// PyramidKV's beta, 0 or at least 1: layer 0 gets 2 - 1/taper of the budget, the last layer 1/taper; 0: all layers alike.
  double taper = 0;
  /// Keeps a share of the units, 1 - ratio or count / tokens of the sequence, whatever their sizes and the protected tokens.
  bool of_units = false;
  bool at_most = false;  ///< a count above the cache's max_tokens means all of them; false: check() throws

  /// Whether the number of tokens follows the sequence's length.
  bool relative() const noexcept { return ratio.has_value(); }
  std::int64_t most_tokens(cache_shape const& shape) const noexcept {
    double const mean = amount(shape.max_tokens);
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(taper > 0 ? 2 * mean : mean), 1, shape.max_tokens);
  }

  void check(cache_shape const& shape) const {
    if (ratio) {
      KVPOLICY_EXPECTS(*ratio >= 0 && *ratio < 1,
                       "a ratio of " + std::to_string(*ratio) + " removed; it must be at least 0 and below 1");
    } else {
      KVPOLICY_EXPECTS(count > 0, "a budget of " + std::to_string(count) + " tokens keeps nothing; give at least 1");
      KVPOLICY_EXPECTS(at_most || count <= shape.max_tokens,
                       "a budget of " + std::to_string(count) + " tokens is above the context of " +
                           std::to_string(shape.max_tokens) + "; lower it, or use policy 'full'");
    }
    KVPOLICY_EXPECTS(taper == 0 || taper >= 1, "a taper of " + std::to_string(taper) + "; it must be 0 (none) or at least 1");
  }

  /// Of n tokens, returns `count` or max(1, trunc(n (1 - ratio))), at most n. A taper follows PyramidKV's public
  /// implementation: in double, in its order, rounded half to even.
  std::int64_t of(budget_request const& request) const noexcept {
    auto const n = static_cast<double>(request.tokens);
    if (ratio && *ratio == 0) return request.tokens;
    double kept = std::trunc(amount(request.tokens));
    if (taper > 0) {
      auto const window = static_cast<double>(request.recent);
      double const mean = (window + amount(request.tokens)) - window;
      double least = mean / taper;
      double most = mean * 2 - least;
      if (most >= n - window) {
        most = n - window;
        least = mean * 2 - most;
      }
      bool const slopes = n >= most && most >= least && least >= window;
      double const step = (most - least) / static_cast<double>(std::max<std::int64_t>(request.shape.layers - 1, 1));
      kept = std::nearbyint(slopes ? most - static_cast<double>(request.layer.value) * step : amount(request.tokens));
    }
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(kept), 1, std::max<std::int64_t>(request.tokens, 1));
  }

  template <executor Exec>
  void allocate(budget_request const& request, table<float const>, std::span<std::int32_t> units, Exec&) const {
    // A count is not clamped to the sequence here: its last unit may be longer than the rest of the sequence.
    std::int64_t const kept = ratio || taper > 0 ? of(request) : count;
    std::int64_t each = ratio && *ratio == 0 ? request.tokens : (kept - request.forced) / request.unit_size;
    if (of_units) {
      auto const all = (request.tokens + request.unit_size - 1) / request.unit_size;
      each = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(all) * (1 - removed(request.tokens))));
    }
    std::ranges::fill(units, static_cast<std::int32_t>(std::max<std::int64_t>(each, 0)));
  }

 private:
  double amount(std::int64_t n) const noexcept {
    return ratio ? static_cast<double>(n) * (1 - *ratio) : static_cast<double>(count);
  }
  double removed(std::int64_t n) const noexcept {
    return ratio ? *ratio : std::max(0.0, 1 - static_cast<double>(count) / static_cast<double>(std::max<std::int64_t>(n, 1)));
  }
};

static_assert(budgeter<tokens>);

}  // namespace kvpolicy::budgets
