// What the definitions of primitives on the host share: products and softmaxes of rows, in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "kvpolicy/queries.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// Whether an executor's rows are in host memory. A primitive that such an executor lacks runs by its definition.
template <class Exec>
inline constexpr bool on_host = std::same_as<typename Exec::memory, host_memory>;

namespace host {

/// Returns the dot product of two vectors of equal size.
/// @param a, b  vectors
/// @return their dot product
inline double dot(std::span<float const> a, std::span<float const> b) noexcept {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

/// Replaces values by their softmax.
/// @param values  not empty
inline void softmax(std::span<double> values) noexcept {
  double const most = *std::ranges::max_element(values);
  double total = 0;
  for (double& v : values) total += v = std::exp(v - most);
  for (double& v : values) v /= total;
}

/// Calls visit(row, token) for every token of a head.
/// @param from  `[heads, tokens, head_dim]`
/// @param head  the head
/// @param buffer  scratch, `[head_dim]`
/// @param visit  gets the row as a span of floats, and the token's index
template <class Visit>
void each_row(rows const& from, std::int64_t head, std::span<float> buffer, Visit visit) {
  for (std::int64_t t = 0; t < from.tokens; ++t) {
    from.load({head}, {t}, buffer);
    visit(std::span<float const>(buffer), t);
  }
}

/// Computes a query's logit for one token.
/// @param query  `[head_dim]`
/// @param scale  multiplies q.k
/// @param keys, head, token  which key
/// @param buffer  scratch, `[head_dim]`
/// @return the logit
inline double logit(float const* query, float scale, rows const& keys, head_id head, token_index token,
                    std::span<float> buffer) {
  keys.load(head, token, buffer);
  return dot({query, buffer.size()}, buffer) * scale;
}

/// Computes a query's softmax over the first tokens.
/// @param query, scale, keys, head, buffer  as logit()
/// @param weights  `[tokens]`
inline void softmax_row(float const* query, float scale, rows const& keys, head_id head, std::span<double> weights,
                        std::span<float> buffer) {
  for (std::size_t t = 0; t < weights.size(); ++t)
    weights[t] = logit(query, scale, keys, head, {static_cast<std::int64_t>(t)}, buffer);
  softmax(weights);
}

}  // namespace host
}  // namespace kvpolicy
