// Primitive attend: one token's attention over the selected rows, where they lie.
#pragma once

#include <span>

#include "kvpolicy/primitive/attention_terms.hpp"
#include "kvpolicy/selection.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// out(q, :) = softmax over the tokens that q's KV head reads of (scale q.k) times v; `[q_heads, head_dim]`.
/// `log_sum_exp` is `[q_heads]` or empty: the log of each softmax's denominator, for merging partial results. A head that
/// reads nothing yields zeros and -inf. fp32; the result does not depend on how many threads took part. With `terms`, the query
/// is that of the last row, and a sink is one of the denominator's summands; their window is not looked at, the selection says
/// what is read.
template <class Memory, class Exec>
void attend(query_heads const& queries, basic_rows<Memory> const& keys, basic_rows<Memory> const& values, selection const& kept,
            attention_terms const& terms, table<float> out, std::span<float> log_sum_exp, Exec& exec) {
  exec.attend(queries, keys, values, kept, terms, out, log_sum_exp);
}

template <class Memory, class Exec>
void attend(query_heads const& queries, basic_rows<Memory> const& keys, basic_rows<Memory> const& values, selection const& kept,
            table<float> out, std::span<float> log_sum_exp, Exec& exec) {
  attend(queries, keys, values, kept, {}, out, log_sum_exp, exec);
}

}  // namespace kvpolicy
