// Primitive attend: the attention of a step's tokens over selected rows.
#pragma once

#include <algorithm>
#include <concepts>
#include <span>
#include <string>

#include "kvpolicy/error.hpp"
#include "kvpolicy/primitive/attention_terms.hpp"
#include "kvpolicy/selection.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// The queries of a step: of several tokens, or of one.
template <class Q>
concept step_queries = std::same_as<Q, query_window> || std::same_as<Q, query_heads>;

/// Tokens of one sequence that a step may bring.
inline constexpr std::int64_t most_step_tokens = 16;

/// Computes the attention of a step's tokens: out(i * q_heads + q, :) = softmax of scale q.k over the tokens that q's KV head
/// reads, up to token i's own, times their values. A head that reads nothing gets zeros and a log-sum of -inf. Sums are at
/// least fp32. Rows behind a token's own have no influence on it, even if they hold a NaN; on a GPU they must be finite.
/// A token's result has the same bits whatever the number of threads. On CPUs it also has the same bits whether a step brings
/// it alone or with others.
/// @param queries  `[w, q_heads, head_dim]`, of the tokens at the last w rows, 1 <= w <= most_step_tokens; or one token's
///        query_heads
/// @param keys, values  rows of one layer, `[kv_heads, tokens, head_dim]`
/// @param kept  the tokens that each KV head reads
/// @param terms  what the model adds; a sink is a summand of the denominator, and `window` is ignored: `kept` names the tokens
/// @param out  `[w * q_heads, head_dim]`
/// @param log_sum_exp  `[w * q_heads]`, or empty: the log of each softmax's denominator, for merging partial results
/// @param exec  the executor
/// @throws invalid_value for more tokens than most_step_tokens, or than rows
/// @throws unsupported on a GPU, if `terms` adds anything and `log_sum_exp` is not empty
template <step_queries Queries, class Memory, class Exec>
void attend(Queries const& queries, basic_rows<Memory> const& keys, basic_rows<Memory> const& values, selection const& kept,
            attention_terms const& terms, table<float> out, std::span<float> log_sum_exp, Exec& exec) {
  if constexpr (std::same_as<Queries, query_heads>) {
    attend(query_window::of_one(queries), keys, values, kept, terms, out, log_sum_exp, exec);
  } else {
    KVPOLICY_EXPECTS(queries.tokens > 0 && queries.tokens <= std::min(most_step_tokens, keys.tokens),
                     "a step of " + std::to_string(queries.tokens) + " tokens over " + std::to_string(keys.tokens) +
                         " rows; it has 1 to " + std::to_string(most_step_tokens) +
                         ", each with a row of its own (attend_block takes more)");
    exec.attend(queries, keys, values, kept, terms, out, log_sum_exp);
  }
}

/// Computes the same without attention terms.
/// @param queries, keys, values, kept, out, log_sum_exp, exec  as above
template <step_queries Queries, class Memory, class Exec>
void attend(Queries const& queries, basic_rows<Memory> const& keys, basic_rows<Memory> const& values, selection const& kept,
            table<float> out, std::span<float> log_sum_exp, Exec& exec) {
  attend(queries, keys, values, kept, {}, out, log_sum_exp, exec);
}

}  // namespace kvpolicy
