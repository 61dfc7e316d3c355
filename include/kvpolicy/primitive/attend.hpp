// Primitive attend: the attention of a step's tokens over selected rows.
#pragma once

#include <algorithm>
#include <concepts>
#include <span>
#include <string>

#include "kvpolicy/detail/row_checks.hpp"
#include "kvpolicy/error.hpp"
#include "kvpolicy/primitive/attention_terms.hpp"
#include "kvpolicy/selection.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// Checks what the two attention primitives are given.
/// @param queries, keys, values, kept, terms, out  as in attend() and attend_block()
/// @throws invalid_value for a scale that is not set; pointers that are null; heads, channels or strides that do not fit; lists
///         that end behind the rows, or name rows without a page; a table of another size; impossible terms
template <class Memory>
void check_attention(query_window const& queries, basic_rows<Memory> const& keys, basic_rows<Memory> const& values,
                     selection const& kept, attention_terms const& terms, table<float> out) {
  check_scale(queries.scale, "the queries");
  KVPOLICY_EXPECTS(
      keys.heads > 0 && queries.heads % keys.heads == 0 && values.heads == keys.heads && values.tokens >= keys.tokens,
      std::to_string(queries.heads) + " query heads over " + std::to_string(keys.heads) + " heads of " +
          std::to_string(keys.tokens) + " keys and " + std::to_string(values.heads) + " of " + std::to_string(values.tokens) +
          " values; each key needs a value, each KV head as many query heads");
  KVPOLICY_EXPECTS(queries.data != nullptr && out.data != nullptr && keys.base != nullptr && values.base != nullptr,
                   std::string("the pointer to the ") +
                       (queries.data == nullptr ? "queries"
                        : out.data == nullptr   ? "output"
                        : keys.base == nullptr  ? "keys"
                                                : "values") +
                       " is null");
  KVPOLICY_EXPECTS(queries.tokens <= keys.tokens, std::to_string(queries.tokens) + " tokens' queries over " +
                                                      std::to_string(keys.tokens) + " rows; each has a row of its own");
  check_query_strides(queries, keys.head_dim, "the queries");
  check_strides(keys, "the keys");
  check_strides(values, "the values");
  KVPOLICY_EXPECTS(terms.window >= 0 && terms.soft_cap >= 0, "a window of " + std::to_string(terms.window) +
                                                                 " and a soft_cap of " + std::to_string(terms.soft_cap) +
                                                                 "; each is above 0, or 0 for none");
  KVPOLICY_EXPECTS(kept.step_tokens() == 0 || kept.step_tokens() == queries.tokens,
                   "queries of " + std::to_string(queries.tokens) + " tokens, and a selection for a step of " +
                       std::to_string(kept.step_tokens()) + "; attend to all tokens of a step at once");
  std::size_t const lists = kept.granularity() == scope::head ? static_cast<std::size_t>(keys.heads) : 1;
  KVPOLICY_EXPECTS(kept.lists().size() == lists, "a selection of " + std::to_string(kept.lists().size()) + " lists for " +
                                                     std::to_string(keys.heads) +
                                                     " KV heads; give the lists of these heads, all others left out");
  for (range_list const& list : kept.lists().first(lists)) {
    KVPOLICY_EXPECTS(list.empty() || (list.front().begin >= 0 && list.back().end <= keys.tokens),
                     "a selection of tokens " + std::to_string(list.front().begin) + " to " + std::to_string(list.back().end) +
                         " over " + std::to_string(keys.tokens) +
                         " rows; give the rows that it was chosen from, and all queries of its step");
  }
  check_apart(keys, values);
  if constexpr (std::same_as<Memory, host_memory>) {
    check_read_pages(keys, kept, "the keys");
    if (values.pages != keys.pages) check_read_pages(values, kept, "the values");
  }
  KVPOLICY_EXPECTS(
      out.rows >= queries.tokens * queries.heads && out.columns >= values.head_dim && out.row_stride >= out.columns,
      "a table of " + std::to_string(out.rows) + " x " + std::to_string(out.columns) + " for " +
          std::to_string(queries.tokens * queries.heads) + " queries' results of " + std::to_string(values.head_dim) +
          " channels");
}

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
/// @param keys  rows of one layer, `[kv_heads, tokens, head_dim]`
/// @param values  `[kv_heads, tokens, value_dim]`, which may be a part of the keys' rows
/// @param kept  the tokens that each KV head reads
/// @param terms  what the model adds; a sink is a summand of the denominator, and `window` is ignored: `kept` names the tokens
/// @param out  `[w * q_heads, value_dim]`
/// @param log_sum_exp  `[w * q_heads]`, or empty: the log of each softmax's denominator, for merging partial results
/// @param exec  the executor
/// @throws invalid_value for more tokens than most_step_tokens, or than rows; a scale that is not set; lists, or tables, of
///         other sizes
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
    check_attention(queries, keys, values, kept, terms, out);
    KVPOLICY_EXPECTS(log_sum_exp.empty() || std::ssize(log_sum_exp) >= queries.tokens * queries.heads,
                     "log_sum_exp has " + std::to_string(log_sum_exp.size()) + " elements for " +
                         std::to_string(queries.tokens * queries.heads) + " queries; give one for each, or none");
    for (range_list const& list : kept.lists()) {
      std::int64_t const begin = keys.tokens - queries.tokens + 1 - terms.window;  // of the first token's window
      KVPOLICY_EXPECTS(terms.window == 0 || list.empty() || list.front().begin >= begin,
                       "the selection reads token " + std::to_string(list.front().begin) + ", and a window of " +
                           std::to_string(terms.window) + " begins at " + std::to_string(begin) +
                           "; choose tokens of the window");
    }
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
