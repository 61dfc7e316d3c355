// Score: dot product of a sentence's mean key with the mean query of the sentence that is being generated (SentenceKV, eq. 2).
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/primitive/score.hpp"

namespace kvpolicy::score {

struct query_mean_dot {
  static constexpr signals needs = signals::queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::units;

  struct memory : no_memory {
    static constexpr bool hears_steps = true;
    std::int64_t heads = 0;
    std::int64_t dim = 0;
    std::vector<float> sums;          ///< `[layers, kv_heads, head_dim]`: of the open sentence's queries, group and tokens
    std::vector<std::int64_t> count;  ///< `[layers, kv_heads]` queries in them
    std::vector<std::int32_t> all;    ///< 0, 1, 2, ...
    std::vector<float> scores;

    std::span<float> sum(layer_id layer, std::int64_t head) noexcept {
      return std::span(sums).subspan(static_cast<std::size_t>((layer.value * heads + head) * dim),
                                     static_cast<std::size_t>(dim));
    }
    std::int64_t& queries(layer_id layer, std::int64_t head) noexcept {
      return count[static_cast<std::size_t>(layer.value * heads + head)];
    }
    /// The mean starts afresh: which of its queries are gone is not known.
    void truncate(std::int64_t) noexcept { std::ranges::fill(count, 0); }
  };
  memory start(cache_shape const& shape) const {
    auto const rows = static_cast<std::size_t>(shape.layers * shape.kv_heads);
    memory made;
    made.heads = shape.kv_heads;
    made.dim = shape.head_dim;
    made.sums.resize(rows * static_cast<std::size_t>(shape.head_dim));
    made.count.resize(rows);
    made.all.resize(static_cast<std::size_t>(shape.max_tokens) + 1);
    std::iota(made.all.begin(), made.all.end(), 0);
    return made;
  }

  /// Adds the current token's queries. A boundary was just before it where the open sentence has no other token.
  template <class Input, executor Exec>
  void watch(Input const& input, Exec&) const {
    std::int64_t const group = input.queries.heads / input.heads.count;
    bool const fresh = input.summaries.tokens - input.summaries.open_begin() == 1;
    for (std::int64_t h = 0; h < input.heads.count; ++h) {
      std::span const sum = input.memory.sum(input.layer, input.heads.first + h);
      std::int64_t& count = input.memory.queries(input.layer, input.heads.first + h);
      if (fresh || count == 0) {
        std::ranges::fill(sum, 0.0f);
        count = 0;
      }
      ++count;
      for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += input.queries.head(q)[i];
      }
    }
  }

  /// The sum stands for the mean: it ranks the same.
  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    for (std::int64_t h = 0; h < input.heads.count; ++h) {
      std::int64_t const head = input.heads.first + h;
      score_dot(input.memory.sum(input.layer, head), table<float const>(input.summaries.of(input.layer, head)),
                std::span(input.memory.all).first(static_cast<std::size_t>(out.columns)),
                std::span(out.row(h), static_cast<std::size_t>(out.columns)), exec);
    }
  }
};

static_assert(scorer<query_mean_dot>);

}  // namespace kvpolicy::score
