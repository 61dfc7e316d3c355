// Primitive list_attention: the attention weights that one token gives to the tokens of a list.
#pragma once

#include <span>

#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/selection.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// Computes out(h, i) = mean or maximum over KV head h's query heads of the softmax weight of the i-th token of h's list. The
/// softmax is over that list alone. O(tokens x q_heads x head_dim). Exponentials are fp32, sums at least fp32.
/// @param queries  `[q_heads, head_dim]`
/// @param keys  `[kv_heads, tokens, head_dim]`
/// @param lists  one list for each of the keys' heads, or one for all; a list may be empty
/// @param out  `[kv_heads, tokens of the longest list]`
/// @param exec  the executor
/// @param merged  how the query heads of a KV head are merged
template <class Memory, class Exec>
void list_attention(query_heads const& queries, basic_rows<Memory> const& keys, std::span<range_list const> lists,
                    table<float> out, Exec& exec, group_merge merged = group_merge::mean) {
  exec.list_attention(queries, keys, lists, merged, out);
}

}  // namespace kvpolicy
