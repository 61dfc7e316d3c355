// Scorer current_attention: scores a token by the attention that a step's query pays to it (OmniKV).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/primitive/list_attention.hpp"
#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/primitive/window_attention.hpp"
#include "kvpolicy/score_input.hpp"

namespace kvpolicy::scorers {

/// Scores a token by the attention that the step's query pays to it and its neighbours, of all tokens (OmniKV, Hao et al.
/// 2025). For a retrieve: at a prompt's end it has no query.
struct current_attention {
  static constexpr signals needs = signals::keys | signals::queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;

  group_merge merged = group_merge::mean;  ///< merges the query heads of a KV head
  smoothing smooth{};                      ///< smooths the weights

  /// Buffers of one call.
  struct memory : no_memory {
    token_table<float> weights;  ///< `[kv_heads, tokens]`
    range_list all;              ///< one range: every token that is scored

    void reserve(std::int64_t tokens) { weights.reserve(tokens); }
  };
  memory start(cache_shape const& shape) const { return {{}, {shape.kv_heads, 1}, range_list(1)}; }

  /// The softmax is over the scored tokens only.
  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    memory& m = input.memory;
    m.all.clear();
    append(m.all, 0, out.columns, reason::scored);
    std::span<range_list const> const all(&m.all, 1);
    m.reserve(out.columns);
    table<float> const weights = m.weights.rows(0, out.rows, out.columns);
    list_attention(input.queries, input.keys(), all, weights, exec, merged);
    auto const count = static_cast<std::size_t>(out.columns);
    for (std::int64_t h = 0; h < out.rows; ++h)
      smooth_row(std::span<float const>(weights.row(h), count), smooth, std::span(out.row(h), count));
  }
};

static_assert(scorer<current_attention>);

}  // namespace kvpolicy::scorers
