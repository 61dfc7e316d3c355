// The oracle executor: every primitive written like its definition, in double precision where the code stays as short.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kvpolicy/exec/host_attend.hpp"
#include "kvpolicy/exec/host_pool.hpp"
#include "kvpolicy/exec/host_row.hpp"
#include "kvpolicy/primitive/attend.hpp"
#include "kvpolicy/primitive/entropy.hpp"
#include "kvpolicy/primitive/list_attention.hpp"
#include "kvpolicy/primitive/pool.hpp"
#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/primitive/top_k.hpp"
#include "kvpolicy/primitive/window_attention.hpp"

namespace kvpolicy {

/// The oracle: runs on the calling thread, on host rows of any type and stride. It is slow on purpose, to be read against the
/// papers. Most scratch rows grow at their first use and stay. It checks no shapes. Contracts are in primitive/.
class host_exec {
 public:
  using memory = host_memory;

  host_exec() = default;
  /// Takes a shape, as other executors do, and ignores it.
  explicit host_exec(cache_shape const&) noexcept {}

  void pool_mean(rows const& keys, pooling const& what, table<float> means, std::int64_t column) {
    host::pool_mean(keys, what, means, column, scratch(row_, keys.head_dim));
  }
  void pool_bounds(rows const& keys, pooling const& what, bounds_table const& bounds) {
    host::pool_bounds(keys, what, bounds, scratch(row_, keys.head_dim));
  }
  void pool_mean_deviation(rows const& keys, pooling const& what, float* moments, bounds_table const& bounds) {
    host::pool_mean_deviation(keys, what, moments, bounds, scratch(row_, keys.head_dim));
  }

  void score_dot(std::span<float const> anchor, table<float const> vectors, std::span<std::int32_t const> units,
                 std::span<float> scores) {
    for (std::size_t i = 0; i < units.size(); ++i) {
      float const* const vector = vectors.row(units[i]);
      double sum = 0;
      for (std::size_t d = 0; d < anchor.size(); ++d) sum += static_cast<double>(anchor[d]) * static_cast<double>(vector[d]);
      scores[i] = static_cast<float>(sum);
    }
  }

  void score_bounds(query_heads const& queries, bounds_table const& bounds, std::int64_t units, group_merge merged,
                    table<float> scores) {
    std::int64_t const group = queries.heads / bounds.heads;
    for (std::int64_t h = 0; h < bounds.heads; ++h) {
      for (std::int64_t u = 0; u < units; ++u) {
        std::byte const* const unit = bounds.unit(h, u);
        double sum = 0;
        double most = -std::numeric_limits<double>::infinity();
        for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
          double bound = 0;
          for (std::int64_t i = 0; i < bounds.head_dim; ++i) {
            double const query = queries.head(q)[i];
            // max(q min, q max); if a unit has no bounds (min > max), the lesser of the two.
            bound += query * element_at(unit, query > 0 ? i : bounds.head_dim + i, bounds.type);
          }
          sum += bound;
          if (bound > most || std::isnan(bound)) most = bound;
        }
        scores(h, u) = static_cast<float>(merged == group_merge::mean ? sum / static_cast<double>(group) : most);
      }
    }
  }

  void window_attention(query_window const& queries, rows const& keys, smoothing smooth, table<float> scores) {
    std::int64_t const before = keys.tokens - queries.tokens;
    std::int64_t const group = queries.heads / keys.heads;
    std::span const weights = scratch(weights_, keys.tokens);
    std::span const of_head = scratch(mean_, before);
    std::span const of_group = scratch(group_, before);
    for (std::int64_t h = 0; h < keys.heads; ++h) {
      std::fill_n(scores.row(h), before, 0.0f);
      std::ranges::fill(of_group, 0.0);
      for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
        std::ranges::fill(of_head, 0.0);
        for (std::int64_t w = 0; w < queries.tokens; ++w) {
          std::span const seen = weights.first(static_cast<std::size_t>(before + w + 1));
          softmax_row(queries.at(w, q), queries.scale, keys, {h}, seen);
          for (std::size_t t = 0; t < of_head.size(); ++t) {
            if (smooth.queries == group_merge::mean) of_head[t] += seen[t] / static_cast<double>(queries.tokens);
            else if (seen[t] > of_head[t]) of_head[t] = seen[t];
          }
        }
        for (std::int64_t t = 0; t < before; ++t) {
          auto const at = static_cast<std::size_t>(t);
          if (smooth.of_group == group_merge::maximum) of_group[at] = std::max(of_group[at], of_head[at]);
          else if (smooth.of_group) of_group[at] += of_head[at] / static_cast<double>(group);
          else scores(h, t) += static_cast<float>(host::smoothed(of_head, t, smooth) / static_cast<double>(group));
        }
      }
      for (std::int64_t t = 0; smooth.of_group && t < before; ++t)
        scores(h, t) = static_cast<float>(host::smoothed(of_group, t, smooth));
    }
  }

  void list_attention(query_heads const& queries, rows const& keys, std::span<range_list const> lists, group_merge merged,
                      table<float> out) {
    std::int64_t const group = queries.heads / keys.heads;
    for (std::int64_t h = 0; h < keys.heads; ++h) {
      range_list const& list = list_of(lists, h);
      std::span const weights = scratch(weights_, token_count(list));
      std::fill_n(out.row(h), weights.size(), 0.0f);
      for (std::int64_t q = h * group; q < (h + 1) * group && !weights.empty(); ++q) {
        std::size_t i = 0;
        each_token(list, [&](std::int32_t t) {
          weights[i++] = host::logit(queries.head(q), queries.scale, keys, {h}, {t}, scratch(key_, keys.head_dim));
        });
        host::softmax(weights);
        for (i = 0; i < weights.size(); ++i) {
          float& to = out.row(h)[i];
          if (merged == group_merge::mean) to += static_cast<float>(weights[i] / static_cast<double>(group));
          else if (!(weights[i] <= static_cast<double>(to))) to = static_cast<float>(weights[i]);
        }
      }
    }
  }

  void top_k(table<float const> scores, std::span<std::int32_t const> k, table<std::int32_t> indices) {
    std::vector<std::int32_t>& order = order_;
    for (std::int64_t r = 0; r < scores.rows; ++r) {
      order.resize(static_cast<std::size_t>(scores.columns));
      std::iota(order.begin(), order.end(), 0);
      std::ranges::sort(order, {}, [&](std::int32_t i) { return std::pair(~sortable_key(scores(r, i)), i); });
      auto const kept =
          std::span(order).first(std::min(order.size(), static_cast<std::size_t>(k[static_cast<std::size_t>(r)])));
      std::ranges::sort(kept);
      std::ranges::copy(kept, indices.row(r));
    }
  }

  void attend(query_window const& queries, rows const& keys, rows const& values, selection const& kept, attention_terms terms,
              table<float> out, std::span<float> log_sum_exp) {
    terms.window = 0;
    host::attend(queries, keys, values, kept, terms, out, log_sum_exp);
  }
  void attend_block(query_window const& queries, rows const& keys, rows const& values, selection const& kept,
                    attention_terms const& terms, table<float> out) {
    host::attend(queries, keys, values, kept, terms, out, {});
  }

  uncertainty entropy(std::span<float const> logits) { return host::entropy(logits); }

 private:
  template <class T>
  static std::span<T> scratch(std::vector<T>& buffer, std::int64_t size) {
    if (buffer.size() < static_cast<std::size_t>(size)) buffer.resize(static_cast<std::size_t>(size));
    return std::span(buffer).first(static_cast<std::size_t>(size));
  }

  void softmax_row(float const* query, float scale, rows const& keys, head_id head, std::span<double> weights) {
    host::softmax_row(query, scale, keys, head, weights, scratch(key_, keys.head_dim));
  }

  std::vector<float> row_;
  std::vector<float> key_;
  std::vector<double> weights_;
  std::vector<double> mean_;
  std::vector<double> group_;
  std::vector<std::int32_t> order_;
};

}  // namespace kvpolicy
