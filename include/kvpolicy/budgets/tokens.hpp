// Budget tokens: gives every list a number of tokens, or a share of the sequence.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::budgets {

/// How a budget tapers from the first layer to the last.
/// authors: PyramidKV's code. The window stays beside what is shared out; all layers alike where a sequence is shorter than
/// twice what is shared out. kvpress: the window is a part of a layer's share; all layers alike where the last one's would be
/// smaller than the window.
enum class taper_rule : std::uint8_t { authors, kvpress };
constexpr auto names_of(taper_rule) noexcept { return std::array{"authors", "kvpress"}; }

/// Gives every list a number of tokens, or a share of the sequence; protected tokens included.
struct tokens {
  static constexpr bool reads_scores = false;

  std::int32_t count = 512;       ///< tokens of a list; of a sequence with fewer, all
  std::optional<double> ratio{};  ///< fraction *removed*, 0 to below 1, in place of `count`; of every token that ever came
  /// PyramidKV's beta, 0 or at least 1: layer 0 gets nearly 2 - 1/taper of the budget, the last layer 1/taper; 0: all alike.
  double taper = 0;
  taper_rule tapers = taper_rule::authors;  ///< what a taper does to the window, and how it rounds
  /// Keeps a share of the units, 1 - ratio or count / tokens of the sequence, whatever their sizes and the protected tokens.
  bool of_units = false;

  /// Whether the number of tokens follows the sequence's length.
  bool relative() const noexcept { return ratio.has_value(); }
  /// Whether a list's tokens don't depend on its layer.
  bool alike_in_layers() const noexcept { return taper == 0; }
  /// Whether the longest sequence fits, and lists keep all of it.
  bool covers(cache_shape const& shape) const noexcept { return !ratio && count > shape.max_tokens; }
  std::int64_t most_tokens(cache_shape const& shape) const noexcept {
    double const mean = amount(shape.max_tokens);
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(taper > 0 ? 2 * mean : mean), 1, shape.max_tokens);
  }

  void check(cache_shape const&) const {
    if (ratio) {
      KVPOLICY_EXPECTS(*ratio >= 0 && *ratio < 1,
                       "a ratio of " + std::to_string(*ratio) + " removed; it must be at least 0 and below 1");
    } else {
      KVPOLICY_EXPECTS(count > 0, "a budget of " + std::to_string(count) + " tokens keeps nothing; give at least 1");
    }
    KVPOLICY_EXPECTS(taper == 0 || taper >= 1, "a taper of " + std::to_string(taper) + "; it must be 0 (none) or at least 1");
  }

  /// Of n tokens, returns `count` or max(1, trunc(n (1 - ratio))), at most n; with a taper, as `tapers` says.
  std::int64_t of(budget_request const& request) const noexcept {
    if (ratio && *ratio == 0) return request.tokens;
    double const kept = taper == 0                      ? std::trunc(amount(request.seen()))
                        : tapers == taper_rule::authors ? by_authors(request)
                                                        : by_kvpress(request);
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(kept), 1, std::max<std::int64_t>(request.tokens, 1));
  }

  template <executor Exec>
  void allocate(budget_request const& request, table<float const>, std::span<std::int32_t> units, Exec&) const {
    // A count is not clamped to the sequence here: its last unit may be longer than the rest of the sequence.
    std::int64_t const kept = ratio || taper > 0 ? of(request) : count;
    std::int64_t each = ratio && *ratio == 0 ? request.tokens : (kept - request.forced) / request.unit_size;
    if (of_units) {
      auto const all = (request.tokens + request.unit_size - 1) / request.unit_size;
      each = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(all) * (1 - removed(request.seen()))));
    }
    std::ranges::fill(units, static_cast<std::int32_t>(std::max<std::int64_t>(each, 0)));
  }

 private:
  /// In whole tokens, as PyramidKVCluster computes them.
  double by_authors(budget_request const& request) const noexcept {
    auto const n = static_cast<double>(request.seen());
    auto const window = static_cast<double>(request.recent);
    double const kept = std::trunc(amount(request.seen()));
    double const shared = kept - window;  // by the layers, on the mean
    if (shared <= 0 || n < 2 * shared) return kept;
    double least = std::floor(shared / taper);
    double most = 2 * shared - least;
    if (most >= n - window) {
      most = n - window;
      least = 2 * shared - most;
    }
    return window + most - static_cast<double>(request.layer.value) * std::floor((most - least) / steps(request));
  }
  /// In double, in kvpress's order, rounded half to even.
  double by_kvpress(budget_request const& request) const noexcept {
    auto const n = static_cast<double>(request.seen());
    auto const window = static_cast<double>(request.recent);
    double const mean = (window + amount(request.seen())) - window;
    double least = mean / taper;
    double most = mean * 2 - least;
    if (most >= n - window) {
      most = n - window;
      least = mean * 2 - most;
    }
    bool const slopes = n >= most && most >= least && least >= window;
    double const step = (most - least) / steps(request);
    return std::nearbyint(slopes ? most - static_cast<double>(request.layer.value) * step : amount(request.seen()));
  }
  /// From the first layer to the last.
  static double steps(budget_request const& request) noexcept {
    return static_cast<double>(std::max<std::int64_t>(request.shape.layers - 1, 1));
  }

  double amount(std::int64_t n) const noexcept {
    return ratio ? static_cast<double>(n) * (1 - *ratio) : static_cast<double>(count);
  }
  double removed(std::int64_t n) const noexcept {
    return ratio ? *ratio : std::max(0.0, 1 - static_cast<double>(count) / static_cast<double>(std::max<std::int64_t>(n, 1)));
  }
};

static_assert(budgeter<tokens>);

}  // namespace kvpolicy::budgets
