// Primitives that score a prompt's tokens from their keys and values alone, or from all its queries' statistics.
#pragma once

#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// norms(h, t) = Euclidean norm of the row: `[heads, tokens]`. A row with a NaN has a NaN.
template <class Memory, class Exec>
void row_norms(basic_rows<Memory> const& from, table<float> norms, Exec& exec) {
  exec.row_norms(from, norms);
}

/// cosines(h, t) = cosine of the key with the mean over all tokens of key / |key|: `[heads, tokens]`; 0 where either is zero.
template <class Memory, class Exec>
void key_similarity(basic_rows<Memory> const& keys, table<float> cosines, Exec& exec) {
  exec.key_similarity(keys, cosines);
}

/// Mean, `[q_heads, head_dim]`, and covariance (divided by the number of queries), `[q_heads * head_dim, head_dim]` or no rows,
/// of the queries before their rotation; the first of them stands at position `first`.
template <class Exec>
void query_moments(query_window const& queries, rotation const& rope, std::int64_t first, table<float> mean,
                   table<float> covariance, Exec& exec) {
  exec.query_moments(queries, rope, first, mean, covariance);
}

/// Queries to come, as a Gaussian for each query head.
struct gaussian_queries {
  table<float const> mean;        ///< `[q_heads, head_dim]`
  table<float const> covariance;  ///< `[q_heads * head_dim, head_dim]`, or no rows: all alike
  float scale = 1;                ///< of q.k
};

/// scores(h, t - first) for tokens [first, tokens): the group's mean of the softmax over those tokens of
/// log E[exp(scale q.k)] = scale mean.k + scale^2/2 k^T covariance k. `[kv_heads, tokens - first]`.
/// O(tokens x q_heads x head_dim^2) with a covariance.
template <class Memory, class Exec>
void gaussian_attention(basic_rows<Memory> const& keys, gaussian_queries const& queries, std::int64_t first,
                        table<float> scores, Exec& exec) {
  exec.gaussian_attention(keys, queries, first, scores);
}

/// `count` partitions of `size` tokens from token `first` on; one more partition of that size must follow them.
struct partitions {
  std::int64_t first = 0;
  std::int64_t size = 1;
  std::int64_t count = 0;
};

/// spread(h, t - first) = standard deviation over channels (divided by their number - 1) of (row - min) / (max - min), where
/// min and max are each channel's over the *next* partition: `[heads, count * size]` (LagKV).
template <class Memory, class Exec>
void partition_deviation(basic_rows<Memory> const& from, partitions const& cut, table<float> spread, Exec& exec) {
  exec.partition_deviation(from, cut, spread);
}

}  // namespace kvpolicy
