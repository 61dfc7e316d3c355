// Budget by_head: some heads keep every token, the others a few (DuoAttention).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/head_values.hpp"

namespace kvpolicy::budgets {

/// Gives every token to the heads that retrieve, and a few to those that stream (DuoAttention, Xiao et al. 2024, arXiv
/// 2410.10819). Which is which does not depend on the question: a file says how much each head retrieves.
struct by_head {
  static constexpr bool reads_scores = false;

  head_values<float> retrieval{};  ///< `[layers * kv_heads]`, larger: keeps every token rather; not owned
  std::int32_t few = 320;          ///< tokens of a head that streams
  double streaming = .5;           ///< share of the heads that stream, 0 to 1
  std::int32_t count = 0;          ///< tokens of a head, mean over all heads, in place of `streaming`; 0: `streaming` says
  /// In place of both: this share of the heads streams, 0 to below 1, so nearly this share of the tokens is removed.
  std::optional<double> ratio{};

  static bool relative() noexcept { return false; }
  static std::int64_t most_tokens(cache_shape const& shape) noexcept { return shape.max_tokens; }

  void check(cache_shape const& shape) const {
    KVPOLICY_EXPECTS(!retrieval.empty(),
                     "duoattention needs to know how much each head retrieves; give DuoAttention's file of the model, or make "
                     "one with kvpolicy-profile");
    check_heads_of(retrieval, 1, shape.layers, shape.kv_heads, "a file");
    KVPOLICY_EXPECTS(std::ranges::none_of(retrieval, [](float score) { return std::isnan(score); }),
                     "a head's retrieval score is NaN; profile the model again");
    KVPOLICY_EXPECTS(few > 0 && count >= 0 && streaming >= 0 && streaming <= 1,
                     "a budget by head: " + std::to_string(few) + " tokens of a head that streams (at least 1), a mean of " +
                         std::to_string(count) + " (at least 0), a share of " + std::to_string(streaming) +
                         " that stream (0 to 1)");
    KVPOLICY_EXPECTS(!ratio || (*ratio >= 0 && *ratio < 1),
                     "a ratio of " + std::to_string(ratio.value_or(0)) + " removed; it must be at least 0 and below 1");
    KVPOLICY_EXPECTS(ratio || count == 0 || count >= std::min<std::int64_t>(few, shape.max_tokens),
                     "a budget of " + std::to_string(count) + " tokens is below the " + std::to_string(few) +
                         " of a head that streams; raise it, or lower sinks and recent");
  }

  /// Computes how many heads stream.
  /// @param tokens  tokens of the sequence
  /// @return the number, 0 to all; with a mean of tokens, the fewest heads that bring the mean down to it
  std::int64_t streaming_heads(std::int64_t tokens) const noexcept {
    auto const heads = static_cast<double>(retrieval.size());
    if (ratio || count == 0) return static_cast<std::int64_t>(std::nearbyint(heads * ratio.value_or(streaming)));
    auto const saved = static_cast<double>(tokens - few);  // by each head that streams
    if (saved <= 0) return 0;
    auto const over = static_cast<double>(tokens - count);
    return static_cast<std::int64_t>(std::clamp(std::ceil(heads * over / saved), 0.0, heads));
  }
  /// Says whether a head streams.
  /// @param head  layer * kv_heads + KV head
  /// @param tokens  tokens of the sequence
  /// @return true for those of the smallest scores; ties: the smaller index
  bool streams(std::size_t head, std::int64_t tokens) const noexcept { return rank(head) < streaming_heads(tokens); }
  /// Returns how many heads stream before this one does.
  /// @param head  `layer * kv_heads + KV head`
  std::int64_t rank(std::size_t head) const noexcept {
    std::int64_t before = 0;
    for (std::size_t other = 0; other < retrieval.size(); ++other) {
      before += retrieval[other] < retrieval[head] || (retrieval[other] == retrieval[head] && other < head) ? 1 : 0;
    }
    return before;
  }

  std::int64_t of(budget_request const& request) const noexcept {
    for (std::int64_t h = request.heads.first; h < request.heads.first + request.heads.count; ++h) {
      auto const head = static_cast<std::size_t>(request.layer.value * request.shape.kv_heads + h);
      if (!streams(head, request.tokens)) return request.tokens;
    }
    return std::min<std::int64_t>(few, request.tokens);
  }

  template <executor Exec>
  void allocate(budget_request const& request, table<float const>, std::span<std::int32_t> units, Exec&) const {
    for (std::size_t i = 0; i < units.size(); ++i) {
      budget_request one = request;
      one.heads = {request.heads.first + static_cast<std::int64_t>(i), 1};
      units[i] = static_cast<std::int32_t>(std::max<std::int64_t>(0, of(one) - request.forced) / request.unit_size);
    }
  }
};

static_assert(budgeter<by_head>);

}  // namespace kvpolicy::budgets
