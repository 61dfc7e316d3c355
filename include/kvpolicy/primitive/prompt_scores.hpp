// Primitives that score a prompt's tokens by their keys and values alone, or by statistics of its queries.
#pragma once

#include <limits>
#include <vector>

#include "kvpolicy/detail/host_rows.hpp"

namespace kvpolicy {

namespace host {
inline void row_norms(rows const& from, table<float> norms) {
  std::vector<float> buffer(static_cast<std::size_t>(from.head_dim));
  for (std::int64_t h = 0; h < from.heads; ++h) {
    each_row(from, h, buffer, [&](auto row, std::int64_t t) { norms(h, t) = static_cast<float>(std::sqrt(dot(row, row))); });
  }
}
}  // namespace host

/// Computes the Euclidean norm of each row. A row with a NaN has the norm NaN.
/// @param from  `[heads, tokens, head_dim]`
/// @param norms  `[heads, tokens]`
/// @param exec  the executor
template <class Memory, class Exec>
void row_norms(basic_rows<Memory> const& from, table<float> norms, Exec& exec) {
  if constexpr (requires { exec.row_norms(from, norms); }) exec.row_norms(from, norms);
  else if constexpr (on_host<Exec>) host::row_norms(from, norms);
  else static_assert(on_host<Exec>, "the executor has no row_norms(from, norms), and its rows are not on the host");
}

namespace host {
inline void key_similarity(rows const& keys, table<float> cosines) {
  std::vector<float> buffer(static_cast<std::size_t>(keys.head_dim));
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
}  // namespace host

/// Computes the cosine of each key and its head's mean direction, the mean over all tokens of key / |key|. The cosine is 0 if
/// the key or the mean is zero.
/// @param keys  `[heads, tokens, head_dim]`
/// @param cosines  `[heads, tokens]`
/// @param exec  the executor
template <class Memory, class Exec>
void key_similarity(basic_rows<Memory> const& keys, table<float> cosines, Exec& exec) {
  if constexpr (requires { exec.key_similarity(keys, cosines); }) exec.key_similarity(keys, cosines);
  else if constexpr (on_host<Exec>) host::key_similarity(keys, cosines);
  else static_assert(on_host<Exec>, "the executor has no key_similarity(keys, cosines), and its rows are not on the host");
}

namespace host {
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
}  // namespace host

/// Computes mean and covariance of queries before their rotation. The covariance is divided by the number of queries.
/// @param queries  `[w, q_heads, head_dim]`, after rotation
/// @param rope  the rotary embedding that rotated them
/// @param first  position of the first query
/// @param mean  `[q_heads, head_dim]`
/// @param covariance  `[q_heads * head_dim, head_dim]`, or without rows: not computed
/// @param exec  the executor
template <class Exec>
void query_moments(query_window const& queries, rotation const& rope, std::int64_t first, table<float> mean,
                   table<float> covariance, Exec& exec) {
  if constexpr (requires { exec.query_moments(queries, rope, first, mean, covariance); })
    exec.query_moments(queries, rope, first, mean, covariance);
  else if constexpr (on_host<Exec>) host::query_moments(queries, rope, first, mean, covariance);
  else
    static_assert(
        on_host<Exec>,
        "the executor has no query_moments(queries, rope, first, mean, covariance), and its rows are not on the host");
}

/// The queries of later tokens, as a Gaussian for each query head.
struct gaussian_queries {
  table<float const> mean;        ///< `[q_heads, head_dim]`
  table<float const> covariance;  ///< `[q_heads * head_dim, head_dim]`, or without rows: zero
  float scale = 1;                ///< multiplies q.k
};

namespace host {
inline void gaussian_attention(rows const& keys, gaussian_queries const& queries, std::int64_t first, table<float> scores) {
  std::vector<float> buffer(static_cast<std::size_t>(keys.head_dim));
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
}  // namespace host

/// Computes the expected attention of Gaussian queries (Expected Attention, arXiv 2510.00636): a softmax over tokens
/// [first, tokens) of log E[exp(scale q.k)] = scale mean.k + scale^2/2 k^T covariance k, then the mean over the query group.
/// O(tokens x q_heads x head_dim^2) with a covariance.
/// @param keys  `[kv_heads, tokens, head_dim]`
/// @param queries  mean, covariance and scale
/// @param first  first token that is scored
/// @param scores  `[kv_heads, tokens - first]`
/// @param exec  the executor
template <class Memory, class Exec>
void gaussian_attention(basic_rows<Memory> const& keys, gaussian_queries const& queries, std::int64_t first,
                        table<float> scores, Exec& exec) {
  if constexpr (requires { exec.gaussian_attention(keys, queries, first, scores); })
    exec.gaussian_attention(keys, queries, first, scores);
  else if constexpr (on_host<Exec>) host::gaussian_attention(keys, queries, first, scores);
  else
    static_assert(on_host<Exec>,
                  "the executor has no gaussian_attention(keys, queries, first, scores), and its rows are not on the host");
}

/// Partitions of equal size. One more partition of that size must follow the last one.
struct partitions {
  std::int64_t first = 0;  ///< first token of the first partition
  std::int64_t size = 1;   ///< tokens
  std::int64_t count = 0;  ///< partitions
};

namespace host {
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
}  // namespace host

/// Computes how much each row spreads over channels, in the scale of the next partition (LagKV, arXiv 2504.04704):
/// spread(h, t - first) = standard deviation over channels (divisor: channels - 1) of (row - min) / (max - min), where min and
/// max are each channel's over the *next* partition. A channel that is constant over that partition gives a NaN.
/// @param from  `[heads, tokens, head_dim]`
/// @param cut  the partitions
/// @param spread  `[heads, count * size]`
/// @param exec  the executor
template <class Memory, class Exec>
void partition_deviation(basic_rows<Memory> const& from, partitions const& cut, table<float> spread, Exec& exec) {
  if constexpr (requires { exec.partition_deviation(from, cut, spread); }) exec.partition_deviation(from, cut, spread);
  else if constexpr (on_host<Exec>) host::partition_deviation(from, cut, spread);
  else
    static_assert(on_host<Exec>,
                  "the executor has no partition_deviation(from, cut, spread), and its rows are not on the host");
}

}  // namespace kvpolicy
