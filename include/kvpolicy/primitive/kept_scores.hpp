// Primitives that score the tokens of a list by their keys alone: how much each repeats others, and what queries to come want.
#pragma once

#include <span>

#include "kvpolicy/selection.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// Computes how much each key of a list repeats the others (R-KV, Cai et al. 2025): redundancy(h, i) = mean over the list's j
/// of c(j, i), where c is the cosine of two keys, 0 for a key of zeros, for j = i, and for the last i for which c(j, i) exceeds
/// `alike`. So of tokens that are alike the last one is not held to repeat the others. O(tokens^2 x head_dim) for a head.
/// @param keys  `[kv_heads, tokens, head_dim]`
/// @param lists  one list for each of the keys' heads, or one for all; a list may be empty
/// @param alike  cosine above which two keys are alike, at least 0
/// @param redundancy  `[kv_heads, tokens of the longest list]`
/// @param exec  the executor
template <class Memory, class Exec>
void key_redundancy(basic_rows<Memory> const& keys, std::span<range_list const> lists, float alike, table<float> redundancy,
                    Exec& exec) {
  exec.key_redundancy(keys, lists, alike, redundancy);
}

/// Queries to come of each query head, as far as a rotary embedding moves them.
struct rotated_queries {
  table<float const> mean;                                ///< `[q_heads, head_dim]`, rotated to where they are expected
  table<float const> spread;                              ///< `[q_heads, pairs]`, at least 0
  rotation::pairing pairing = rotation::pairing::halves;  ///< which channels make a pair
};

/// Computes what queries to come want of the tokens of a list (TriAttention): wanted(q, i) = mean_q.k_i + sum over pairs f of
/// spread_q,f |k_i,f|, where |k_i,f| is the length of the key's pair f. A rotation changes no length, so keys are read as they
/// are stored. O(tokens x q_heads x head_dim).
/// @param keys  `[kv_heads, tokens, head_dim]`
/// @param lists  one list for each of the keys' heads, or one for all; a list may be empty
/// @param queries  mean and spread
/// @param wanted  `[q_heads, tokens of the longest list]`
/// @param exec  the executor
template <class Memory, class Exec>
void rotated_scores(basic_rows<Memory> const& keys, std::span<range_list const> lists, rotated_queries const& queries,
                    table<float> wanted, Exec& exec) {
  exec.rotated_scores(keys, lists, queries, wanted);
}

}  // namespace kvpolicy
