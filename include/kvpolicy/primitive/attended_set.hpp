// The tokens that a query attends to most, smoothed over neighbours: the sets that HeteroCache compares, offline and online.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "kvpolicy/primitive/list_attention.hpp"
#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/primitive/top_k.hpp"
#include "kvpolicy/primitive/window_attention.hpp"

namespace kvpolicy {

/// Buffers of group_attention and attended_set.
struct attended_set_scratch {
  std::vector<float> weights;
  std::vector<float> smoothed;
  std::vector<std::int32_t> set;
  range_list all;

  /// Allocates all buffers.
  /// @param tokens  the longest sequence that they serve
  explicit attended_set_scratch(std::int64_t tokens = 0) {
    all.reserve(1);
    reserve(tokens);
  }
  /// Makes room for longer sequences.
  /// @param tokens  the longest sequence that they serve then
  void reserve(std::int64_t tokens) {
    auto const size = std::max(weights.size(), static_cast<std::size_t>(tokens));
    weights.resize(size);
    smoothed.resize(size);
    set.resize(size);
  }
};

/// Computes the attention of one query group to tokens [0, tokens), each query's softmax being over these tokens alone.
/// @param queries  the group's queries, `[group, head_dim]`
/// @param keys  one head's, `[1, >= tokens, head_dim]`
/// @param tokens  how many of the first tokens take part
/// @param merged  how the group's weights become one weight
/// @param scratch  buffers for at least `tokens` tokens
/// @param exec  the executor
/// @return the weights, `[tokens]`, in `scratch`
template <class Memory, class Exec>
std::span<float const> group_attention(query_heads const& queries, basic_rows<Memory> const& keys, std::int64_t tokens,
                                       group_merge merged, attended_set_scratch& scratch, Exec& exec) {
  scratch.all.clear();
  append(scratch.all, 0, tokens, reason::scored);
  auto const size = static_cast<std::size_t>(tokens);
  std::int64_t const at_once = merged == group_merge::mean ? queries.heads : 1;
  for (std::int64_t q = 0; q < queries.heads; q += at_once) {
    std::vector<float>& to = q == 0 ? scratch.weights : scratch.smoothed;
    list_attention({queries.head(q), at_once, queries.head_stride, queries.scale}, keys,
                   std::span<range_list const>(&scratch.all, 1), table<float>{to.data(), 1, tokens, tokens}, exec);
    for (std::size_t t = 0; q > 0 && t < size; ++t) {
      if (!(to[t] <= scratch.weights[t])) scratch.weights[t] = to[t];
    }
  }
  return std::span(scratch.weights).first(size);
}

/// Finds the tokens of [0, tokens) that one query group attends to most.
/// @param queries, keys, tokens, merged, scratch, exec  as in group_attention
/// @param count  how many tokens are wanted
/// @param width  tokens that each weight is averaged over, odd; zeros pad both ends and are counted
/// @return min(count, tokens) token indices, ascending, in `scratch`
template <class Memory, class Exec>
std::span<std::int32_t const> attended_set(query_heads const& queries, basic_rows<Memory> const& keys, std::int64_t tokens,
                                           std::int64_t count, std::int64_t width, group_merge merged,
                                           attended_set_scratch& scratch, Exec& exec) {
  std::span const weights = group_attention(queries, keys, tokens, merged, scratch, exec);
  smooth_row(weights, {.how = smoothing::kind::average, .width = width}, std::span(scratch.smoothed).first(weights.size()));
  std::array const k{static_cast<std::int32_t>(std::min(count, tokens))};
  top_k(table<float const>{scratch.smoothed.data(), 1, tokens, tokens}, k,
        table<std::int32_t>{scratch.set.data(), 1, k[0], k[0]}, exec);
  return std::span(scratch.set).first(static_cast<std::size_t>(k[0]));
}

}  // namespace kvpolicy
