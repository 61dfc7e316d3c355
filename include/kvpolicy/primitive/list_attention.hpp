// Primitive list_attention: the weights that one token's attention gives to the tokens that are still there.
#pragma once

#include <span>

#include "kvpolicy/selection.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// out(h, i) = mean over KV head h's query heads of the softmax weight of the i-th token of its list, the softmax being
/// over that list alone: `[kv_heads, most tokens of a list]`. `lists` has one list for each of the keys' heads, or one for all.
/// A list may be empty. O(tokens x q_heads x head_dim); exponentials in fp32, sums of at least fp32.
template <class Memory, class Exec>
void list_attention(query_heads const& queries, basic_rows<Memory> const& keys, std::span<range_list const> lists,
                    table<float> out, Exec& exec) {
  exec.list_attention(queries, keys, lists, out);
}

}  // namespace kvpolicy
