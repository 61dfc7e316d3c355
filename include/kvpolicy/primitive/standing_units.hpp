// The units that a prompt's last queries attend to most. Every step reads them, even if its own query ranks others higher.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "kvpolicy/primitive/fill.hpp"
#include "kvpolicy/primitive/window_attention.hpp"

namespace kvpolicy {

/// Buffers of standing_units.
struct standing_units_scratch {
  std::vector<float> weights;
  std::vector<float> scores;
  std::vector<std::int32_t> sizes;
  std::vector<std::int32_t> taken;

  /// Allocates all buffers.
  /// @param tokens, units  the most that they serve
  explicit standing_units_scratch(std::int64_t tokens = 0, std::int64_t units = 0)
      : weights(static_cast<std::size_t>(tokens)),
        scores(static_cast<std::size_t>(units)),
        sizes(scores.size()),
        taken(scores.size()) {}
};

/// Marks whole units with the most attended tokens, as many as `budget` tokens hold. A unit's score is the largest
/// window_attention weight of its tokens. Tokens inside the query window do not count. Ties go to the smaller index.
/// @param queries  of the last tokens, for one KV head: `[w, group, head_dim]`; w = 0 marks nothing
/// @param keys  that head's, `[1, retained tokens, head_dim]`, the window's included
/// @param ends  `[units]`: unit u has the retained tokens of indices [ends[u - 1], ends[u])
/// @param budget  tokens
/// @param scratch  buffers
/// @param stands  `[units]`: 1 for a marked unit, else 0
/// @param exec  the executor
template <class Memory, class Exec>
void standing_units(query_window const& queries, basic_rows<Memory> const& keys, std::span<std::int32_t const> ends,
                    std::int64_t budget, standing_units_scratch& scratch, std::span<std::uint8_t> stands, Exec& exec) {
  std::ranges::fill(stands, std::uint8_t{0});
  std::int64_t const before = keys.tokens - queries.tokens;
  if (before <= 0 || queries.tokens <= 0) return;
  table<float> const weights{scratch.weights.data(), 1, before, before};
  window_attention(queries, keys, {}, weights, exec);
  for (std::size_t u = 0; u < ends.size(); ++u) {
    std::int64_t const begin = u == 0 ? 0 : ends[u - 1];
    std::int64_t const end = std::min<std::int64_t>(ends[u], before);
    float most = -std::numeric_limits<float>::infinity();
    for (std::int64_t t = begin; t < end; ++t) most = std::max(most, weights(0, t));
    scratch.scores[u] = most;
    scratch.sizes[u] = static_cast<std::int32_t>(std::max<std::int64_t>(0, end - begin));
  }
  std::span const sizes = std::span(scratch.sizes).first(ends.size());
  std::span const taken = std::span(scratch.taken).first(ends.size());
  fill(std::span<float const>(scratch.scores).first(ends.size()), sizes, budget, taken);
  for (std::size_t u = 0; u < ends.size(); ++u) stands[u] = sizes[u] > 0 && taken[u] == sizes[u] ? 1 : 0;
}

}  // namespace kvpolicy
