// Scorer lag: scores a token by how much its key and value spread, in the scale of the next partition (LagKV).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/detail/token_table.hpp"

namespace kvpolicy::scorers {

/// Scores a token by how much its key and value spread over channels, in the scale of the next partition.
/// The method is LagKV (Liang et al. 2025, arXiv 2504.04704). A channel that is constant over a partition gives NaN. Use
/// windows::lag with the same `sinks` and `size`: it protects every token without a score.
struct lag {
  static constexpr signals needs = signals::keys | signals::values;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;

  std::int32_t sinks = 4;   ///< first tokens, which get no score
  std::int32_t size = 128;  ///< tokens of a partition
  bool cross = false;       ///< compare scores across partitions; false: ranks within a partition

  /// Buffers of one call.
  struct memory : no_memory {
    token_table<float> spread;        ///< `[kv_heads, tokens]`, of the values
    std::vector<std::int32_t> order;  ///< `[size]`, a partition's tokens by rising score
  };
  memory start(cache_shape const& shape) const {
    KVPOLICY_EXPECTS(size >= 1 && sinks >= 0, "partitions of " + std::to_string(size) + " tokens behind " +
                                                  std::to_string(sinks) + " first ones; a partition has at least 1");
    return {{},
            {shape.kv_heads, 1},
            std::vector<std::int32_t>(static_cast<std::size_t>(std::min<std::int64_t>(size, shape.max_tokens)))};
  }

  template <class Window>
  void check(Window const& of_rule, cache_shape const&) const {
    if constexpr (requires { of_rule.size == size&& of_rule.sinks == sinks; }) {
      KVPOLICY_EXPECTS(of_rule.size == size && of_rule.sinks == sinks,
                       "partitions of " + std::to_string(size) + " tokens behind " + std::to_string(sinks) +
                           " first ones, and a window of partitions of " + std::to_string(of_rule.size) + " behind " +
                           std::to_string(of_rule.sinks) + "; give both the same sizes");
    }
  }

  /// Scores the tokens from `sinks` on, partition by partition. The others rank first; windows::lag protects them.
  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    std::int64_t const count = std::max<std::int64_t>(0, (out.columns - sinks) / size);
    for (std::int64_t h = 0; h < out.rows; ++h) std::fill_n(out.row(h), out.columns, std::numeric_limits<float>::infinity());
    if (count == 0) return;
    partitions const cut{.first = sinks, .size = size, .count = count};
    table<float> const scores{out.data + sinks, out.rows, count * size, out.row_stride};
    input.memory.spread.reserve(count * size);
    table<float> const values = input.memory.spread.rows(0, out.rows, count * size);
    partition_deviation(input.keys(), cut, scores, exec);
    partition_deviation(input.values(), cut, values, exec);
    for (std::int64_t h = 0; h < out.rows; ++h) {
      for (std::int64_t p = 0; p < count; ++p) {
        std::span const of_keys(scores.row(h) + p * size, static_cast<std::size_t>(size));
        std::span const of_values(values.row(h) + p * size, static_cast<std::size_t>(size));
        softmax(of_keys);
        softmax(of_values);
        for (std::size_t i = 0; i < of_keys.size(); ++i) of_keys[i] = (of_keys[i] + of_values[i]) / 2;
        if (!cross) rank(of_keys, input.memory.order);
      }
    }
  }

 private:
  static void softmax(std::span<float> values) {
    float const most = *std::ranges::max_element(values);
    float total = 0;
    for (float& v : values) total += v = std::exp(v - most);
    for (float& v : values) v /= total;
  }
  static void rank(std::span<float> values, std::vector<std::int32_t>& order) {
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {},
                      [&](std::int32_t i) { return std::pair(sortable_key(values[static_cast<std::size_t>(i)]), i); });
    for (std::size_t i = 0; i < order.size(); ++i) {
      values[static_cast<std::size_t>(order[i])] = static_cast<float>(i) / static_cast<float>(values.size());
    }
  }
};

static_assert(scorer<lag>);

}  // namespace kvpolicy::scorers
