// Scorer expected_attention: scores a token by the attention that future queries are expected to pay (ExpectedAttention).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/score_input.hpp"
#include "kvpolicy/scorers/window_attention.hpp"

namespace kvpolicy::scorers {

/// Scores a token by the attention that future queries are expected to pay (Devoto et al. 2025, arXiv 2510.00636).
/// Future queries are a Gaussian: mean and covariance of the prompt's queries before their rotary embedding, rotated by the
/// mean rotation of the next `future` positions.
struct expected_attention {
  static constexpr signals needs = signals::keys | signals::values | signals::observation_queries | signals::rotation;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;

  std::int32_t sinks = 4;             ///< first tokens, neither queries nor keys; they get no score, so protect them
  std::int32_t future = 512;          ///< positions behind the prompt at which queries are expected, at most 2^20
  bool covariance = true;             ///< use the queries' covariance beside their mean
  bool value_norm = true;             ///< multiply the score by the norm of the token's value
  double epsilon = 0;                 ///< added to the attention before that product; kvpress's class: 0
  std::int32_t window = all_queries;  ///< queries; how many of the prompt's last ones count

  /// Buffers of one call.
  struct memory : no_memory {
    token_table<float> mean;            ///< `[q_heads, head_dim]`
    token_table<float> covariance;      ///< `[q_heads, head_dim, head_dim]`
    std::vector<double> mean_rotation;  ///< `[head_dim]`: mean cosines of the future rotation, then mean sines
    token_table<float> norms;           ///< `[kv_heads, tokens]`, of the values

    void reserve(std::int64_t tokens) {
      mean.reserve(1);
      covariance.reserve(1);
      norms.reserve(tokens);
    }
  };
  memory start(cache_shape const& shape) const {
    constexpr std::int32_t farthest = 1 << 20;
    KVPOLICY_EXPECTS(future >= 0 && future <= farthest,
                     "future is " + std::to_string(future) + " positions; it must be 0 to " + std::to_string(farthest));
    memory made;
    made.mean = {shape.q_heads, shape.head_dim};
    made.covariance = {covariance ? shape.q_heads * shape.head_dim : 0, shape.head_dim};
    made.mean_rotation.resize(static_cast<std::size_t>(shape.head_dim));
    made.norms = {value_norm ? shape.kv_heads : 0, 1};
    return made;
  }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    cache_shape const shape = input.view.shape();
    query_window const queries = last_queries(input.prompt, window).of(input.heads, shape.group());
    rotation const& rope = input.prompt->rope;
    std::int64_t const n = input.tokens;
    input.memory.reserve(n);
    std::int64_t const first = std::min<std::int64_t>(sinks, n);
    std::int64_t const skipped = std::max<std::int64_t>(0, first - (n - queries.tokens));
    table<float> const mean{input.memory.mean.data(), queries.heads, shape.head_dim, shape.head_dim};
    table<float> const spread{input.memory.covariance.data(), covariance ? queries.heads * shape.head_dim : 0, shape.head_dim,
                              shape.head_dim};
    for (std::int64_t h = 0; h < out.rows; ++h) {  // sinks rank first if no window protects them
      std::fill_n(out.row(h), std::min(first, out.columns), std::numeric_limits<float>::infinity());
    }
    if (out.columns <= first || skipped >= queries.tokens) return;
    query_moments(queries.last(queries.tokens - skipped), rope, n - queries.tokens + skipped, mean, spread, exec);
    std::span const cosines = std::span(input.memory.mean_rotation).first(static_cast<std::size_t>(rope.pairs));
    std::span const sines = std::span(input.memory.mean_rotation).last(static_cast<std::size_t>(rope.pairs));
    std::ranges::fill(input.memory.mean_rotation, 0.0);
    for (std::int64_t i = 0; i < rope.pairs; ++i) {
      for (std::int64_t p = n; p < n + future; ++p) {
        double const angle = static_cast<double>(p) * rope.inverse_frequency[i];
        cosines[static_cast<std::size_t>(i)] += std::cos(angle) / future;
        sines[static_cast<std::size_t>(i)] += std::sin(angle) / future;
      }
    }
    // m' = R m and C' = R C R^T, R the mean rotation.
    auto const rotate = [&](float* vector, std::int64_t stride) {
      for (std::int64_t i = 0; i < rope.pairs; ++i) {
        bool const halves = rope.how == rotation::pairing::halves;
        float& a = vector[stride * (halves ? i : 2 * i)];
        float& b = vector[stride * (halves ? i + rope.pairs : 2 * i + 1)];
        double const c = cosines[static_cast<std::size_t>(i)];
        double const s = sines[static_cast<std::size_t>(i)];
        double const x = a;
        double const y = b;
        a = static_cast<float>(c * x - s * y);
        b = static_cast<float>(s * x + c * y);
      }
    };
    for (std::int64_t h = 0; h < queries.heads; ++h) {
      rotate(mean.row(h), 1);
      if (!covariance) continue;
      for (std::int64_t i = 0; i < shape.head_dim; ++i) rotate(spread.row(h * shape.head_dim) + i, shape.head_dim);  // columns
      for (std::int64_t i = 0; i < shape.head_dim; ++i) rotate(spread.row(h * shape.head_dim + i), 1);               // rows
    }
    gaussian_attention(input.keys(), {.mean = mean, .covariance = spread, .scale = queries.scale}, first,
                       table<float>{out.data + first, out.rows, n - first, out.row_stride}, exec);
    if (!value_norm) return;
    table<float> const norms = input.memory.norms.rows(0, out.rows, n);
    row_norms(input.values(), norms, exec);
    for (std::int64_t h = 0; h < out.rows; ++h) {
      for (std::int64_t t = first; t < n; ++t) out(h, t) = (out(h, t) + static_cast<float>(epsilon)) * norms(h, t);
    }
  }
};

static_assert(scorer<expected_attention>);

}  // namespace kvpolicy::scorers
