// attend and attend_block of host_exec: one query at a time, in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kvpolicy/primitive/attend.hpp"

namespace kvpolicy::host {

/// Returns the logit that cap and slope make of scale q.k.
/// @param product  scale q.k
/// @param terms  cap and slopes; sinks and window are not used
/// @param q_head  the query's head
/// @param row, at  rows of the key and of the query
/// @return the logit
inline double termed_logit(double product, attention_terms const& terms, std::int64_t q_head, std::int64_t row,
                           std::int64_t at) {
  double logit = product;
  if (terms.soft_cap != 0) logit = terms.soft_cap * std::tanh(logit / terms.soft_cap);
  if (terms.slopes != nullptr) logit += terms.slopes[q_head] * static_cast<double>(row - at);
  return logit;
}

/// Computes what primitive/attend.hpp and primitive/attend_block.hpp say, of any number of tokens. Allocates.
/// @param queries, keys, values, kept, terms, out, log_sum_exp  as there
inline void attend(query_window const& queries, rows const& keys, rows const& values, selection const& kept,
                   attention_terms const& terms, table<float> out, std::span<float> log_sum_exp) {
  std::int64_t const group = queries.heads / keys.heads;
  std::vector<float> row(static_cast<std::size_t>(keys.head_dim));
  std::vector<float> value(static_cast<std::size_t>(values.head_dim));
  std::vector<double> sums(value.size());
  std::vector<double> logits;
  std::vector<std::int64_t> seen;
  for (std::int64_t i = 0; i < queries.tokens; ++i) {
    std::int64_t const at = keys.tokens - queries.tokens + i;
    std::int64_t const oldest = terms.window > 0 ? at - terms.window + 1 : 0;
    for (std::int64_t q = 0; q < queries.heads; ++q) {
      head_id const head{q / group};
      float const* const query = queries.at(i, q);
      seen.clear();
      for (token_range const& range : kept.of(head)) {
        for (std::int64_t t = std::max<std::int64_t>(range.begin, oldest); t < std::min<std::int64_t>(range.end, at + 1); ++t)
          seen.push_back(t);
      }
      logits.clear();
      double most = -std::numeric_limits<double>::infinity();
      for (std::int64_t const t : seen) {
        keys.load(head, {t}, row);
        double product = 0;
        for (std::size_t d = 0; d < row.size(); ++d) product += static_cast<double>(query[d]) * row[d];
        logits.push_back(termed_logit(product * queries.scale, terms, q, t, at));
        most = std::max(most, logits.back());
      }
      if (terms.sinks != nullptr) most = std::max<double>(most, terms.sinks[q]);
      double total = terms.sinks != nullptr ? std::exp(terms.sinks[q] - most) : 0;
      std::ranges::fill(sums, 0.0);
      for (std::size_t s = 0; s < seen.size(); ++s) {
        double const weight = std::exp(logits[s] - most);
        total += weight;
        values.load(head, {seen[s]}, value);
        for (std::size_t d = 0; d < value.size(); ++d) sums[d] += weight * value[d];
      }
      if (!log_sum_exp.empty())
        log_sum_exp[static_cast<std::size_t>(i * queries.heads + q)] = static_cast<float>(most + std::log(total));
      float* const to = out.row(i * queries.heads + q);
      for (std::size_t d = 0; d < sums.size(); ++d) to[d] = static_cast<float>(total == 0 ? 0 : sums[d] / total);
    }
  }
}

}  // namespace kvpolicy::host
