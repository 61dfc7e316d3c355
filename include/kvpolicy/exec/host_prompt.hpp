// The primitives of host_exec that read whole prompts, written like their definitions, in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kvpolicy/primitive/entropy.hpp"
#include "kvpolicy/primitive/prompt_scores.hpp"
#include "kvpolicy/primitive/window_attention.hpp"

namespace kvpolicy::host {

/// Returns the dot product of two vectors of equal size.
/// @param a, b  vectors
/// @return their dot product
inline double dot(std::span<float const> a, std::span<float const> b) noexcept {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

/// Replaces values by their softmax.
/// @param values  not empty
inline void softmax(std::span<double> values) noexcept {
  double const most = *std::ranges::max_element(values);
  double total = 0;
  for (double& v : values) total += v = std::exp(v - most);
  for (double& v : values) v /= total;
}

/// Calls visit(row, token) for every token of a head.
/// @param from  `[heads, tokens, head_dim]`
/// @param head  the head
/// @param buffer  scratch, resized to `[head_dim]`
/// @param visit  gets the row as a span of floats, and the token's index
template <class Visit>
void each_row(rows const& from, std::int64_t head, std::vector<float>& buffer, Visit visit) {
  buffer.resize(static_cast<std::size_t>(from.head_dim));
  for (std::int64_t t = 0; t < from.tokens; ++t) {
    from.load({head}, {t}, buffer);
    visit(std::span<float const>(buffer), t);
  }
}

/// See primitive/prompt_scores.hpp.
/// @param from, norms  as there
/// @param buffer  scratch
inline void row_norms(rows const& from, table<float> norms, std::vector<float>& buffer) {
  for (std::int64_t h = 0; h < from.heads; ++h) {
    each_row(from, h, buffer, [&](auto row, std::int64_t t) { norms(h, t) = static_cast<float>(std::sqrt(dot(row, row))); });
  }
}

/// See primitive/prompt_scores.hpp.
/// @param keys, cosines  as there
/// @param buffer  scratch
inline void key_similarity(rows const& keys, table<float> cosines, std::vector<float>& buffer) {
  for (std::int64_t h = 0; h < keys.heads; ++h) {
    std::vector<double> mean(static_cast<std::size_t>(keys.head_dim));
    each_row(keys, h, buffer, [&](auto key, std::int64_t) {
      double const norm = std::sqrt(dot(key, key));
      for (std::size_t i = 0; i < key.size() && norm != 0; ++i) mean[i] += key[i] / norm / static_cast<double>(keys.tokens);
    });
    double square = 0;
    for (double const m : mean) square += m * m;
    each_row(keys, h, buffer, [&](auto key, std::int64_t t) {
      double product = 0;
      for (std::size_t i = 0; i < key.size(); ++i) product += key[i] * mean[i];
      double const norms = std::sqrt(dot(key, key)) * std::sqrt(square);
      cosines(h, t) = static_cast<float>(norms == 0 ? 0 : product / norms);
    });
  }
}

/// See primitive/prompt_scores.hpp.
/// @param queries, rope, first, mean, covariance  as there
inline void query_moments(query_window const& queries, rotation const& rope, std::int64_t first, table<float> mean,
                          table<float> covariance) {
  std::int64_t const dim = mean.columns;
  auto const size = static_cast<std::size_t>(dim);
  std::vector<double> plain(size);
  auto const pre_rope = [&](std::int64_t t, std::int64_t h) {
    std::copy_n(queries.at(t, h), dim, plain.begin());
    for (std::int64_t i = 0; i < rope.pairs; ++i) {
      bool const halves = rope.how == rotation::pairing::halves;
      double& a = plain[static_cast<std::size_t>(halves ? i : 2 * i)];
      double& b = plain[static_cast<std::size_t>(halves ? i + rope.pairs : 2 * i + 1)];
      double const angle = static_cast<double>(first + t) * static_cast<double>(rope.inverse_frequency[i]);
      double const x = a;
      a = std::cos(angle) * x + std::sin(angle) * b;
      b = std::cos(angle) * b - std::sin(angle) * x;
    }
  };
  auto const count = static_cast<double>(queries.tokens);
  for (std::int64_t h = 0; h < queries.heads; ++h) {
    std::vector<double> sum(size);
    for (std::int64_t t = 0; t < queries.tokens; ++t) {
      pre_rope(t, h);
      for (std::size_t i = 0; i < size; ++i) sum[i] += plain[i] / count;
    }
    for (std::size_t i = 0; i < size; ++i) mean(h, static_cast<std::int64_t>(i)) = static_cast<float>(sum[i]);
    if (covariance.rows == 0) continue;
    std::vector<double> products(size * size);
    for (std::int64_t t = 0; t < queries.tokens; ++t) {
      pre_rope(t, h);
      for (std::size_t i = 0; i < size; ++i) {
        for (std::size_t j = 0; j < size; ++j) products[i * size + j] += (plain[i] - sum[i]) * (plain[j] - sum[j]) / count;
      }
    }
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < size; ++j) {
        covariance(h * dim + static_cast<std::int64_t>(i), static_cast<std::int64_t>(j)) =
            static_cast<float>(products[i * size + j]);
      }
    }
  }
}

/// See primitive/prompt_scores.hpp.
/// @param keys, queries, first, scores  as there
/// @param buffer  scratch
inline void gaussian_attention(rows const& keys, gaussian_queries const& queries, std::int64_t first, table<float> scores,
                               std::vector<float>& buffer) {
  std::int64_t const group = queries.mean.rows / keys.heads;
  std::int64_t const dim = keys.head_dim;
  std::vector<double> weights(static_cast<std::size_t>(keys.tokens - first));
  for (std::int64_t h = 0; h < keys.heads; ++h) {
    for (std::int64_t t = 0; t < keys.tokens - first; ++t) scores(h, t) = 0;
    for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
      std::span const mean(queries.mean.row(q), static_cast<std::size_t>(dim));
      each_row(keys, h, buffer, [&](auto key, std::int64_t t) {
        if (t < first) return;
        double logit = queries.scale * dot(mean, key);
        for (std::int64_t i = 0; i < dim && queries.covariance.rows > 0; ++i) {
          std::span const row(queries.covariance.row(q * dim + i), static_cast<std::size_t>(dim));
          logit += queries.scale * queries.scale / 2 * key[static_cast<std::size_t>(i)] * dot(row, key);
        }
        weights[static_cast<std::size_t>(t - first)] = logit;
      });
      softmax(weights);
      for (std::size_t t = 0; t < weights.size(); ++t) {
        scores(h, static_cast<std::int64_t>(t)) += static_cast<float>(weights[t] / static_cast<double>(group));
      }
    }
  }
}

/// See primitive/window_attention.hpp.
/// @param queries, begin, keys, first, last, local, positions, scores  as there
/// @param buffer  scratch
inline void following_queries(query_window const& queries, std::int64_t begin, rows const& keys, std::int64_t first,
                              std::int64_t last, std::int64_t local, std::int32_t const* positions, table<float> scores,
                              std::vector<float>& buffer) {
  std::int64_t const group = queries.heads / keys.heads;
  buffer.resize(static_cast<std::size_t>(keys.head_dim));
  for (std::int64_t h = 0; h < keys.heads; ++h) {
    for (std::int64_t m = first; m < last; ++m) {
      keys.load({h}, {m}, buffer);
      std::int64_t const next = 1 + (positions == nullptr ? m : positions[m]);
      std::int64_t const from = std::max(next, begin);
      std::int64_t const to = std::min(next + local, begin + queries.tokens);
      double sum = 0;
      for (std::int64_t t = from; t < to; ++t) {
        for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
          sum += dot(std::span(queries.at(t - begin, q), buffer.size()), buffer);
        }
      }
      scores(h, m - first) = static_cast<float>(from < to ? sum / static_cast<double>((to - from) * group) : 0);
    }
  }
}

/// See primitive/prompt_scores.hpp.
/// @param from, cut, spread  as there
inline void partition_deviation(rows const& from, partitions const& cut, table<float> spread) {
  auto const dim = static_cast<std::size_t>(from.head_dim);
  std::vector<float> row(dim);
  std::vector<float> low(dim);
  std::vector<float> high(dim);
  for (std::int64_t h = 0; h < from.heads; ++h) {
    for (std::int64_t p = 0; p < cut.count; ++p) {
      std::int64_t const begin = cut.first + p * cut.size;
      std::ranges::fill(low, std::numeric_limits<float>::infinity());
      std::ranges::fill(high, -std::numeric_limits<float>::infinity());
      for (std::int64_t t = begin + cut.size; t < begin + 2 * cut.size; ++t) {
        from.load({h}, {t}, row);
        for (std::size_t i = 0; i < dim; ++i) {
          low[i] = std::min(low[i], row[i]);
          high[i] = std::max(high[i], row[i]);
        }
      }
      for (std::int64_t t = begin; t < begin + cut.size; ++t) {
        from.load({h}, {t}, row);
        double mean = 0;
        for (std::size_t i = 0; i < dim; ++i) {
          row[i] = (row[i] - low[i]) / (high[i] - low[i]);
          mean += row[i] / static_cast<double>(dim);
        }
        double square = 0;
        for (float const x : row) square += (x - mean) * (x - mean);
        spread(h, t - cut.first) = static_cast<float>(std::sqrt(square / static_cast<double>(dim - 1)));
      }
    }
  }
}

/// Returns one value merged with its neighbours, by `how` and `width` of a smoothing (primitive/window_attention.hpp).
/// @param values  a row
/// @param at  index of the value
/// @param smooth  kind and width
/// @return the smoothed value
inline double smoothed(std::span<double const> values, std::int64_t at, smoothing smooth) {
  if (smooth.how == smoothing::kind::none) return values[static_cast<std::size_t>(at)];
  bool const average = smooth.how == smoothing::kind::average;
  double result = average ? 0 : -std::numeric_limits<double>::infinity();
  std::int64_t const first = std::max<std::int64_t>(0, at - smooth.width / 2);
  std::int64_t const last = std::min(static_cast<std::int64_t>(values.size()) - 1, at + smooth.width / 2);
  for (std::int64_t t = first; t <= last; ++t) {
    double const value = values[static_cast<std::size_t>(t)];
    if (average) result += value / static_cast<double>(smooth.width);
    else if (!(value <= result)) result = value;
  }
  return result;
}

/// See primitive/entropy.hpp.
/// @param logits  as there
/// @return as there
inline uncertainty entropy(std::span<float const> logits) {
  double const most = *std::ranges::max_element(logits);
  double total = 0;
  for (float const x : logits) total += std::exp(x - most);
  auto const surprise = [&](float x) { return std::log(total) - (x - most); };
  auto const mean_of = [&](auto f) {
    double mean = 0;
    for (float const x : logits) {
      double const p = std::exp(x - most) / total;
      if (p != 0) mean += p * f(surprise(x));
    }
    return mean;
  };
  double const entropy = mean_of([](double s) { return s; });
  double const varentropy = mean_of([&](double s) { return (s - entropy) * (s - entropy); });
  return {static_cast<float>(entropy), static_cast<float>(varentropy)};
}

}  // namespace kvpolicy::host
