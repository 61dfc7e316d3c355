// Primitives that score a prompt's tokens by their keys and values alone, or by statistics of its queries.
#pragma once

#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// Computes the Euclidean norm of each row. A row with a NaN has the norm NaN.
/// @param from  `[heads, tokens, head_dim]`
/// @param norms  `[heads, tokens]`
/// @param exec  the executor
template <class Memory, class Exec>
void row_norms(basic_rows<Memory> const& from, table<float> norms, Exec& exec) {
  exec.row_norms(from, norms);
}

/// Computes the cosine of each key and its head's mean direction, the mean over all tokens of key / |key|. The cosine is 0 if
/// the key or the mean is zero.
/// @param keys  `[heads, tokens, head_dim]`
/// @param cosines  `[heads, tokens]`
/// @param exec  the executor
template <class Memory, class Exec>
void key_similarity(basic_rows<Memory> const& keys, table<float> cosines, Exec& exec) {
  exec.key_similarity(keys, cosines);
}

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
  exec.query_moments(queries, rope, first, mean, covariance);
}

/// The queries of later tokens, as a Gaussian for each query head.
struct gaussian_queries {
  table<float const> mean;        ///< `[q_heads, head_dim]`
  table<float const> covariance;  ///< `[q_heads * head_dim, head_dim]`, or without rows: zero
  float scale = 1;                ///< multiplies q.k
};

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
  exec.gaussian_attention(keys, queries, first, scores);
}

/// Partitions of equal size. One more partition of that size must follow the last one.
struct partitions {
  std::int64_t first = 0;  ///< first token of the first partition
  std::int64_t size = 1;   ///< tokens
  std::int64_t count = 0;  ///< partitions
};

/// Computes how much each row spreads over channels, in the scale of the next partition (LagKV, arXiv 2504.04704):
/// spread(h, t - first) = standard deviation over channels (divisor: channels - 1) of (row - min) / (max - min), where min and
/// max are each channel's over the *next* partition. A channel that is constant over that partition gives a NaN.
/// @param from  `[heads, tokens, head_dim]`
/// @param cut  the partitions
/// @param spread  `[heads, count * size]`
/// @param exec  the executor
template <class Memory, class Exec>
void partition_deviation(basic_rows<Memory> const& from, partitions const& cut, table<float> spread, Exec& exec) {
  exec.partition_deviation(from, cut, spread);
}

}  // namespace kvpolicy
