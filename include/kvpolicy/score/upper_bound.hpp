// Score: the largest q.k that any key of the page could have (Quest, sec. 3.3), mean or maximum over the query group.
#pragma once

#include <algorithm>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/primitive/score.hpp"

namespace kvpolicy::score {

/// How the query heads of a KV head are merged.
enum class group : std::uint8_t { mean, maximum };

struct upper_bound {
  static constexpr signals needs = signals::queries;
  static constexpr scope how_fine = scope::head;
  static constexpr scored of = scored::units;

  group merged = group::mean;

  /// One query head's scores, `[kv_heads, max_tokens]`, where the maximum needs them.
  struct memory {
    static constexpr bool by_rank = false;
    std::vector<float> scores;
    std::int64_t tokens = 0;
    void truncate(std::int64_t) noexcept {}
    void cut(layer_id, head_range, std::int64_t) noexcept {}
  };
  memory start(cache_shape const& shape) const {
    auto const size = merged == group::mean ? 0 : static_cast<std::size_t>(shape.kv_heads * shape.max_tokens);
    return {std::vector<float>(size), shape.max_tokens};
  }
  template <class Input, executor Exec>
  void begin(Input const&, Exec&) const noexcept {}
  template <class Input, executor Exec>
  void watch(Input const&, Exec&) const noexcept {}

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    bounds_table const bounds = input.summaries.of(input.layer).of(input.heads);
    if (merged == group::mean) return score_bounds(input.queries, bounds, out.columns, out, exec);
    std::int64_t const size = input.queries.heads / bounds.heads;
    table<float> const one{input.memory.scores.data(), out.rows, out.columns, input.memory.tokens};
    for (std::int64_t g = 0; g < size; ++g) {  // the g-th query head of every KV head
      query_heads const few{input.queries.head(g), bounds.heads, size * input.queries.head_stride, input.queries.scale};
      score_bounds(few, bounds, out.columns, g == 0 ? out : one, exec);
      for (std::int64_t h = 0; g > 0 && h < out.rows; ++h) {
        for (std::int64_t u = 0; u < out.columns; ++u) out(h, u) = std::max(out(h, u), one(h, u));
      }
    }
  }
};

static_assert(scorer<upper_bound>);

}  // namespace kvpolicy::score
