// Primitives score_dot and score_bounds: scores of units from their summaries.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kvpolicy/primitive/pool.hpp"

namespace kvpolicy {

/// Computes the dot products of the anchor and the vectors of some units: scores[i] = anchor . vectors.row(units[i]).
/// Only these vectors are read. Sums are at least fp32.
/// @param anchor  `[dims]`
/// @param vectors  `[all units, dims]`
/// @param units  rows of `vectors`
/// @param scores  `[units.size()]`
/// @param exec  the executor
template <class Exec>
void score_dot(std::span<float const> anchor, table<float const> vectors, std::span<std::int32_t const> units,
               std::span<float> scores, Exec& exec) {
  exec.score_dot(anchor, vectors, units, scores);
}

/// How the scores of a KV head's query heads become one score. A NaN among them counts as the maximum.
enum class group_merge : std::uint8_t { mean, maximum };
/// Returns the names of all values, in order.
constexpr auto names_of(group_merge) noexcept { return std::array{"mean", "maximum"}; }

/// Computes the largest q.k that any key of a unit could have (Quest, section 3.3): scores(h, u) = mean or maximum over KV head
/// h's query heads of the sum over channels of max(q min, q max).
/// @param queries  `[q_heads, head_dim]`
/// @param bounds  `[kv_heads, units, 2, head_dim]`
/// @param units  the first `units` units are scored
/// @param merged  how the scores of query heads become one
/// @param scores  `[kv_heads, units]`
/// @param exec  the executor
template <class Exec>
void score_bounds(query_heads const& queries, bounds_table const& bounds, std::int64_t units, group_merge merged,
                  table<float> scores, Exec& exec) {
  exec.score_bounds(queries, bounds, units, merged, scores);
}

}  // namespace kvpolicy
