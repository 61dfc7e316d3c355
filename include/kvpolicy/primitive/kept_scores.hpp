// Primitives that score the tokens of a list by their keys alone: how much each repeats others, and what queries to come want.
#pragma once

#include <span>
#include <vector>

#include "kvpolicy/detail/host_rows.hpp"
#include "kvpolicy/selection.hpp"

namespace kvpolicy {

namespace host {
inline void key_redundancy(rows const& keys, std::span<range_list const> lists, float alike, table<float> redundancy) {
  for (std::int64_t h = 0; h < keys.heads; ++h) {
    std::vector<std::vector<float>> listed;
    for (token_range const& range : list_of(lists, h)) {
      for (std::int64_t t = range.begin; t < range.end; ++t) {
        keys.load({h}, {t}, listed.emplace_back(static_cast<std::size_t>(keys.head_dim)));
      }
    }
    std::size_t const count = listed.size();
    std::vector<double> sums(count);
    for (std::size_t j = 0; j < count; ++j) {
      std::vector<double> cosines(count);
      std::size_t last = count;
      for (std::size_t i = 0; i < count; ++i) {
        double const norms = std::sqrt(dot(listed[j], listed[j])) * std::sqrt(dot(listed[i], listed[i]));
        cosines[i] = i == j || norms == 0 ? 0 : dot(listed[j], listed[i]) / norms;
        if (cosines[i] > alike) last = i;
      }
      if (last < count) cosines[last] = 0;
      for (std::size_t i = 0; i < count; ++i) sums[i] += cosines[i];
    }
    for (std::size_t i = 0; i < count; ++i) {
      redundancy(h, static_cast<std::int64_t>(i)) = static_cast<float>(sums[i] / static_cast<double>(count));
    }
  }
}
}  // namespace host

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
  if constexpr (requires { exec.key_redundancy(keys, lists, alike, redundancy); })
    exec.key_redundancy(keys, lists, alike, redundancy);
  else if constexpr (on_host<Exec>) host::key_redundancy(keys, lists, alike, redundancy);
  else
    static_assert(on_host<Exec>,
                  "the executor has no key_redundancy(keys, lists, alike, redundancy), and its rows are not on the host");
}

/// Queries to come of each query head, as far as a rotary embedding moves them.
struct rotated_queries {
  table<float const> mean;                                ///< `[q_heads, head_dim]`, rotated to where they are expected
  table<float const> spread;                              ///< `[q_heads, pairs]`, at least 0
  rotation::pairing pairing = rotation::pairing::halves;  ///< which channels make a pair
};

namespace host {
inline void rotated_scores(rows const& keys, std::span<range_list const> lists, rotated_queries const& queries,
                           table<float> wanted) {
  std::int64_t const group = queries.mean.rows / keys.heads;
  std::int64_t const pairs = queries.spread.columns;
  std::vector<float> key(static_cast<std::size_t>(keys.head_dim));
  for (std::int64_t h = 0; h < keys.heads; ++h) {
    std::int64_t i = 0;
    for (token_range const& range : list_of(lists, h)) {
      for (std::int64_t t = range.begin; t < range.end; ++t, ++i) {
        keys.load({h}, {t}, key);
        for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
          double sum = dot(key, {queries.mean.row(q), key.size()});
          for (std::int64_t f = 0; f < pairs; ++f) {
            bool const halves = queries.pairing == rotation::pairing::halves;
            double const x = key[static_cast<std::size_t>(halves ? f : 2 * f)];
            double const y = key[static_cast<std::size_t>(halves ? f + pairs : 2 * f + 1)];
            sum += static_cast<double>(queries.spread(q, f)) * std::sqrt(x * x + y * y);
          }
          wanted(q, i) = static_cast<float>(sum);
        }
      }
    }
  }
}
}  // namespace host

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
  if constexpr (requires { exec.rotated_scores(keys, lists, queries, wanted); })
    exec.rotated_scores(keys, lists, queries, wanted);
  else if constexpr (on_host<Exec>) host::rotated_scores(keys, lists, queries, wanted);
  else
    static_assert(on_host<Exec>,
                  "the executor has no rotated_scores(keys, lists, queries, wanted), and its rows are not on the host");
}

}  // namespace kvpolicy
