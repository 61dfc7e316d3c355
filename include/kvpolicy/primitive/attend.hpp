// Primitive attend: the attention of one token over selected rows.
#pragma once

#include <span>

#include "kvpolicy/primitive/attention_terms.hpp"
#include "kvpolicy/selection.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// Computes one token's attention: out(q, :) = softmax of scale q.k over the tokens that q's KV head reads, times their values.
/// A head that reads nothing gets zeros and a log-sum of -inf. Sums are at least fp32. The result does not depend on the number
/// of threads.
/// @param queries  `[q_heads, head_dim]`, of the token at the last row (only slopes depend on that)
/// @param keys, values  rows of one layer, `[kv_heads, tokens, head_dim]`
/// @param kept  the tokens that each KV head reads
/// @param terms  what the model adds; a sink is a summand of the denominator, and `window` is ignored: `kept` names the tokens
/// @param out  `[q_heads, head_dim]`
/// @param log_sum_exp  `[q_heads]`, or empty: the log of each softmax's denominator, for merging partial results
/// @param exec  the executor
/// @throws unsupported on a GPU, if `terms` adds anything and `log_sum_exp` is not empty
template <class Memory, class Exec>
void attend(query_heads const& queries, basic_rows<Memory> const& keys, basic_rows<Memory> const& values, selection const& kept,
            attention_terms const& terms, table<float> out, std::span<float> log_sum_exp, Exec& exec) {
  exec.attend(queries, keys, values, kept, terms, out, log_sum_exp);
}

/// Computes the same without attention terms.
/// @param queries, keys, values, kept, out, log_sum_exp, exec  as above
template <class Memory, class Exec>
void attend(query_heads const& queries, basic_rows<Memory> const& keys, basic_rows<Memory> const& values, selection const& kept,
            table<float> out, std::span<float> log_sum_exp, Exec& exec) {
  attend(queries, keys, values, kept, {}, out, log_sum_exp, exec);
}

}  // namespace kvpolicy
