// Primitives score_dot and score_bounds: how much units matter, from their summaries.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kvpolicy/primitive/pool.hpp"

namespace kvpolicy {

/// scores[i] = anchor . vectors.row(units[i]), for the units named: `[units]` from `[dims]` x `[all units, dims]`.
/// Only the named rows are read. fp32 accumulation.
template <class Exec>
void score_dot(std::span<float const> anchor, table<float const> vectors, std::span<std::int32_t const> units,
               std::span<float> scores, Exec& exec) {
  exec.score_dot(anchor, vectors, units, scores);
}

/// How the query heads of a KV head are merged. A NaN in any of them is the maximum.
enum class group_merge : std::uint8_t { mean, maximum };
constexpr auto names_of(group_merge) noexcept { return std::array{"mean", "maximum"}; }

/// scores(h, u) = mean or maximum over KV head h's query heads of sum over channels of max(q min, q max): the largest q.k that
/// any key of unit u could have (Quest, sec. 3.3). `[kv_heads, units]` from `[q_heads, head_dim]` x bounds.
template <class Exec>
void score_bounds(query_heads const& queries, bounds_table const& bounds, std::int64_t units, group_merge merged,
                  table<float> scores, Exec& exec) {
  exec.score_bounds(queries, bounds, units, merged, scores);
}

}  // namespace kvpolicy
