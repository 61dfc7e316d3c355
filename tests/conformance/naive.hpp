// The primitives once more, from their contracts alone: float64, one element at a time, nothing shared with the library.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "conformance/random_rows.hpp"
#include "kvpolicy/primitive/window_attention.hpp"
#include "kvpolicy/selection.hpp"

namespace kvpolicy_test::naive {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Higher first, NaN last; stable sorting adds the smaller index.
inline std::vector<std::int32_t> top_k(std::span<float const> scores, std::int64_t k) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    double const x = scores[static_cast<std::size_t>(a)];
    double const y = scores[static_cast<std::size_t>(b)];
    if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);
    return x > y;
  });
  order.resize(static_cast<std::size_t>(std::min<std::int64_t>(k, static_cast<std::int64_t>(order.size()))));
  std::sort(order.begin(), order.end());
  return order;
}

inline std::vector<std::int32_t> top_k(std::vector<double> const& scores, std::int64_t k) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(std::min<std::int64_t>(k, static_cast<std::int64_t>(order.size()))));
  std::sort(order.begin(), order.end());
  return order;
}

/// Whether fp32 could choose otherwise: a score that is not the k-th one, but closer to it than `slack`.
inline bool close_call(std::vector<double> scores, std::int64_t k, double slack) {
  if (k <= 0 || k >= static_cast<std::int64_t>(scores.size())) return false;
  std::vector<double> sorted = scores;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double const threshold = sorted[static_cast<std::size_t>(k - 1)];
  return std::any_of(scores.begin(), scores.end(), [&](double s) { return s != threshold && std::abs(s - threshold) < slack; });
}

/// Mean of a unit's keys, one head and channel.
inline double mean(random_cache const& cache, std::int64_t l, std::int64_t h, std::int64_t d, std::int64_t first,
                   std::int64_t last) {
  double sum = 0;
  for (std::int64_t t = first; t < last; ++t) sum += cache.key(l, h, t, d);
  return sum / static_cast<double>(last - first);
}

/// (largest, smallest) of a unit's keys, `key_of(token)`, NaN passed over, infinities as the type's largest values.
template <class Key>
std::pair<double, double> bounds(Key key_of, element_type type, std::int64_t first, std::int64_t last) {
  double const edge = largest(type);
  double high = -edge;
  double low = edge;
  for (std::int64_t t = first; t < last; ++t) {
    double key = key_of(t);
    if (std::isnan(key)) continue;
    if (std::isinf(key)) key = key > 0 ? edge : -edge;
    high = std::max(high, key);
    low = std::min(low, key);
  }
  return {high, low};
}

/// Quest's score of tokens [first, last) for one KV head, and the sum of its terms' sizes.
inline std::pair<double, double> bound_score(random_cache const& cache, std::vector<float> const& queries, std::int64_t l,
                                             std::int64_t h, std::int64_t first, std::int64_t last) {
  std::int64_t const dims = cache.shape().head_dim;
  std::int64_t const group = cache.shape().group();
  double score = 0;
  double size = 0;
  for (std::int64_t d = 0; d < dims; ++d) {
    auto const [high, low] = bounds([&](std::int64_t t) { return cache.key(l, h, t, d); }, cache.shape().type, first, last);
    for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
      double const query = queries[static_cast<std::size_t>(q * dims + d)];
      double const term = std::max(query * high, query * low) / static_cast<double>(group);
      score += term;
      size += std::abs(term);
    }
  }
  return {score, size};
}

/// (mean + deviation, mean - deviation) of a unit's rows, one head and channel; NaN where one of them is.
inline std::pair<double, double> spread(random_rows const& from, std::int64_t h, std::int64_t d, std::int64_t first,
                                        std::int64_t last) {
  auto const count = static_cast<double>(last - first);
  double mean = 0;
  for (std::int64_t t = first; t < last; ++t) mean += from.at(h, t, d) / count;
  double variance = 0;
  for (std::int64_t t = first; t < last; ++t) variance += std::pow(from.at(h, t, d) - mean, 2) / count;
  return {mean + std::sqrt(variance), mean - std::sqrt(variance)};
}

inline double dot(float const* query, random_cache const& cache, std::int64_t l, std::int64_t h, std::int64_t t) {
  double sum = 0;
  for (std::int64_t d = 0; d < cache.shape().head_dim; ++d) {
    sum += static_cast<double>(query[d]) * static_cast<double>(cache.key(l, h, t, d));
  }
  return sum;
}

inline std::vector<double> softmax(std::vector<double> logits) {
  double const most = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (double& x : logits) total += (x = std::exp(x - most));
  for (double& x : logits) x /= total;
  return logits;
}

/// One attention value over its neighbours: zeros beyond both ends count in an average, and are not there for a maximum.
inline double smoothed(std::vector<double> const& attention, std::int64_t t, smoothing smooth) {
  if (smooth.how == smoothing::kind::none) return attention[static_cast<std::size_t>(t)];
  double sum = 0;
  double highest = -infinity;
  for (std::int64_t s = t - (smooth.width - 1) / 2; s <= t + (smooth.width - 1) / 2; ++s) {
    if (s < 0 || s >= std::ssize(attention)) continue;
    sum += attention[static_cast<std::size_t>(s)];
    highest = std::max(highest, attention[static_cast<std::size_t>(s)]);
  }
  return smooth.how == smoothing::kind::average ? sum / static_cast<double>(smooth.width) : highest;
}

/// Softmax of the i-th of `w` last queries `[w, q_heads, head_dim]`, query head q, over the tokens that it sees.
inline std::vector<double> causal_attention(random_rows const& keys, cache_shape const& shape,
                                            std::vector<float> const& queries, std::int64_t q, std::int64_t w, std::int64_t i,
                                            double scale) {
  std::vector<double> logits;
  float const* const query = queries.data() + (i * shape.q_heads + q) * shape.head_dim;
  for (std::int64_t t = 0; t <= keys.tokens() - w + i; ++t) logits.push_back(scale * keys.dot(query, q / shape.group(), t));
  return softmax(logits);
}

/// Scores of the tokens before a window of `w` queries, for KV head h.
inline std::vector<double> window_attention(random_rows const& keys, cache_shape const& shape,
                                            std::vector<float> const& queries, std::int64_t h, std::int64_t w, double scale,
                                            smoothing smooth) {
  std::int64_t const before = keys.tokens() - w;
  auto const group = static_cast<double>(shape.group());
  std::vector<double> result(static_cast<std::size_t>(before), 0.0);
  std::vector<double> of_group(result);
  for (std::int64_t q = h * shape.group(); q < (h + 1) * shape.group(); ++q) {
    std::vector<double> attention(static_cast<std::size_t>(before), 0.0);
    for (std::int64_t i = 0; i < w; ++i) {
      std::vector<double> const weights = causal_attention(keys, shape, queries, q, w, i, scale);
      for (std::size_t t = 0; t < attention.size(); ++t) {
        attention[t] = smooth.queries == group_merge::maximum ? std::max(attention[t], weights[t])
                                                              : attention[t] + weights[t] / static_cast<double>(w);
      }
    }
    for (std::int64_t t = 0; t < before; ++t) {
      result[static_cast<std::size_t>(t)] += smoothed(attention, t, smooth) / group;
      double& merged = of_group[static_cast<std::size_t>(t)];
      if (smooth.of_group == group_merge::maximum) merged = std::max(merged, attention[static_cast<std::size_t>(t)]);
      else merged += attention[static_cast<std::size_t>(t)] / group;
    }
  }
  if (!smooth.of_group) return result;
  for (std::int64_t t = 0; t < before; ++t) result[static_cast<std::size_t>(t)] = smoothed(of_group, t, smooth);
  return result;
}

/// The same of one layer's `n` tokens, as the engine has them.
inline std::vector<double> window_attention(random_cache const& cache, std::vector<float> const& queries, std::int64_t h,
                                            std::int64_t n, std::int64_t w, double scale, smoothing smooth) {
  return window_attention(random_rows(cache, n), cache.shape(), queries, h, w, scale, smooth);
}

/// For every token the mean weight over the queries that see it, and the group.
inline std::vector<double> seen_attention(random_rows const& keys, cache_shape const& shape, std::vector<float> const& queries,
                                          std::int64_t h, std::int64_t w, double scale) {
  std::vector<double> sums(static_cast<std::size_t>(keys.tokens()), 0.0);
  std::vector<double> count(sums);
  for (std::int64_t q = h * shape.group(); q < (h + 1) * shape.group(); ++q) {
    for (std::int64_t i = 0; i < w; ++i) {
      std::vector<double> const weights = causal_attention(keys, shape, queries, q, w, i, scale);
      for (std::size_t t = 0; t < weights.size(); ++t) {
        sums[t] += weights[t];
        count[t] += 1;
      }
    }
  }
  for (std::size_t t = 0; t < sums.size(); ++t) sums[t] /= count[t];
  return sums;
}

/// One token's weights over a list, mean or maximum over KV head h's query heads.
inline std::vector<double> list_attention(random_rows const& keys, cache_shape const& shape, std::vector<float> const& queries,
                                          std::int64_t h, double scale, range_list const& list,
                                          group_merge merged = group_merge::mean) {
  std::vector<double> result(static_cast<std::size_t>(token_count(list)), 0.0);
  if (result.empty()) return result;
  for (std::int64_t q = h * shape.group(); q < (h + 1) * shape.group(); ++q) {
    std::vector<double> logits;
    for (token_range const& range : list) {
      for (std::int64_t t = range.begin; t < range.end; ++t) {
        logits.push_back(scale * keys.dot(queries.data() + q * shape.head_dim, h, t));
      }
    }
    std::vector<double> const weights = softmax(logits);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (merged == group_merge::mean) result[i] += weights[i] / static_cast<double>(shape.group());
      else result[i] = std::max(result[i], weights[i]);
    }
  }
  return result;
}

struct attended {
  std::vector<double> out;
  double log_sum_exp = -infinity;
};

/// One query head over the tokens named.
inline attended attend(random_cache const& cache, float const* query, double scale, std::int64_t l, std::int64_t h,
                       std::vector<std::int64_t> const& tokens) {
  attended made{std::vector<double>(static_cast<std::size_t>(cache.shape().head_dim), 0.0), -infinity};
  if (tokens.empty()) return made;
  std::vector<double> logits;
  for (std::int64_t const t : tokens) logits.push_back(scale * dot(query, cache, l, h, t));
  std::vector<double> const weights = softmax(logits);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::size_t d = 0; d < made.out.size(); ++d) {
      made.out[d] += weights[i] * cache.value(l, h, tokens[i], static_cast<std::int64_t>(d));
    }
  }
  double total = 0;
  for (double const x : logits) total += std::exp(x);  // logits are small here
  made.log_sum_exp = std::log(total);
  return made;
}

/// (entropy, varentropy), from the probabilities themselves.
inline std::pair<double, double> entropy(std::span<float const> logits) {
  std::vector<double> const p = softmax(std::vector<double>(logits.begin(), logits.end()));
  double entropy = 0;
  for (double const x : p) entropy -= x > 0 ? x * std::log(x) : 0;
  double varentropy = 0;
  for (double const x : p) varentropy += x > 0 ? x * std::pow(-std::log(x) - entropy, 2) : 0;
  return {entropy, varentropy};
}

}  // namespace kvpolicy_test::naive
