// Primitive attend_block: causal attention of a block of neighbouring tokens, such as a prompt's, over selected rows.
#pragma once

#include "kvpolicy/primitive/attend.hpp"

namespace kvpolicy {

/// Computes the attention of the last tokens: out(i * q_heads + q, :) = softmax over the selected rows up to token i's own row,
/// times their values. Logits are scale q.k with what `terms` adds. A query that sees no row gets zeros. Rows that a query does
/// not see have no influence, even if they hold a NaN. Source: online softmax by tiles, FlashAttention (arXiv 2205.14135).
///
/// Precision: sums are fp32. Rows of f16 and bf16 enter exactly. Rows of f32, and queries, keep at least 16 significant bits,
/// so a logit errs by at most 2^-15 of the sum of its products' magnitudes. Weights keep at least 8 bits, and the sum of the
/// rounded weights divides them. The result does not depend on the number of threads.
/// @param queries  `[w, q_heads, head_dim]`, of the tokens at the last w rows; w <= tokens
/// @param keys  rows of one layer, `[kv_heads, tokens, head_dim]`
/// @param values  `[kv_heads, tokens, value_dim]`, which may be a part of the keys' rows
/// @param kept  the rows that each KV head may read
/// @param terms  what the model adds to logits and sums, and how many rows a token sees
/// @param out  `[w * q_heads, value_dim]`
/// @param exec  the executor
/// @throws invalid_value as attend() does for a scale, lists and tables
template <class Memory, class Exec>
void attend_block(query_window const& queries, basic_rows<Memory> const& keys, basic_rows<Memory> const& values,
                  selection const& kept, attention_terms const& terms, table<float> out, Exec& exec) {
  check_attention(queries, keys, values, kept, terms, out);
  exec.attend_block(queries, keys, values, kept, terms, out);
}

}  // namespace kvpolicy
