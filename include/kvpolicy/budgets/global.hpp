// Budget global: shares the tokens of all layers out to the best units of any head of any layer (KVzip).
#pragma once

#include <span>

#include "kvpolicy/budgets/adaptive.hpp"

namespace kvpolicy::budgets {

/// Shares the tokens of all layers out to the best units of any head of any layer (KVzip, Kim et al. 2025, arXiv 2505.23416).
/// So lists differ in length. Needs a scorer that knows the scores of all layers at once: scorers::repetition_attention.
struct global {
  static constexpr bool reads_scores = true;
  static constexpr bool across_layers = true;

  tokens each{};  ///< tokens of a head, mean over all heads of all layers

  bool relative() const noexcept { return each.relative(); }
  bool covers(cache_shape const& shape) const noexcept { return each.covers(shape); }
  std::int64_t most_tokens(cache_shape const& shape) const noexcept { return shape.max_tokens; }
  void check(cache_shape const& shape) const { each.check(shape); }
  std::int64_t of(budget_request const& request) const noexcept { return each.of(request); }

  /// Takes the best units of all rows. Ties: the lower layer and head, then the lower index.
  /// @param request  the tokens of a head
  /// @param scores  `[layers * kv_heads, units]`
  /// @param units  `[layers * kv_heads]`, receives how many units each list gets
  /// @param exec  the executor
  template <executor Exec>
  void allocate(budget_request const& request, table<float const> scores, std::span<std::int32_t> units, Exec& exec) const {
    adaptive{each, 0}.allocate(request, scores, units, exec);
  }
};

static_assert(budgeter<global>);

}  // namespace kvpolicy::budgets
