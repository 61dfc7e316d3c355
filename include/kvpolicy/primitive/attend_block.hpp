// Primitive attend_block: causal attention of a block of neighbouring tokens, as a prompt's, over the selected rows.
#pragma once

#include "kvpolicy/primitive/attention_terms.hpp"
#include "kvpolicy/selection.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// The queries are those of the last rows, one token each: out(i * q_heads + q, :) is the softmax over the rows that q's KV
/// head is given, up to token i's own, times their values; `[tokens * q_heads, head_dim]`. Logits are scale q.k, with what
/// `terms` adds. A query that sees nothing yields zeros. What it does not see does not
/// matter, even if it is NaN. Sums are fp32; rows of f16 and bf16 are taken as they are, f32 and queries have at least 16
/// significant bits: a logit errs by at most 2^-15 of the sum of its products' magnitudes. Weights have at least 8 bits, and
/// are divided by the sum of what they were rounded to. The result does not depend on how many threads took part. Source:
/// online softmax by tiles, FlashAttention (arXiv 2205.14135).
template <class Memory, class Exec>
void attend_block(query_window const& queries, basic_rows<Memory> const& keys, basic_rows<Memory> const& values,
                  selection const& kept, attention_terms const& terms, table<float> out, Exec& exec) {
  exec.attend_block(queries, keys, values, kept, terms, out);
}

}  // namespace kvpolicy
