// Scorer repetition_attention: scores a token by the attention that it gets while the model repeats it (KVzip).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/primitive/window_attention.hpp"
#include "kvpolicy/score_input.hpp"

namespace kvpolicy::scorers {

/// Scores a token by the largest attention that any query head of its KV head gives it while the model repeats the text in
/// which it stands (KVzip, Kim et al. 2025, arXiv 2505.23416, eq. 2). The engine decodes the repetition in pieces
/// (prompt_signals::repeats). Each softmax is over the first `sinks` tokens, the tokens that the piece repeats, and the piece.
struct repetition_attention {
  static constexpr signals needs = signals::keys | signals::repetition;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;

  std::int32_t sinks = 4;  ///< first tokens of the sequence that stand in each softmax

  /// What was repeated, and the scores of these tokens.
  struct memory : no_memory {
    token_table<float> scores;       ///< `[layers, kv_heads, tokens]`
    token_table<float> weights;      ///< `[kv_heads, tokens]`, of one call
    std::vector<std::int32_t> rows;  ///< `[tokens]`, of one call: tokens whose keys a softmax reads
    std::int64_t heads = 0;          ///< KV heads of a layer
    std::int64_t tokens = 0;         ///< max_tokens of the cache
    token_span repeated{};           ///< in all layers
    bool complete = false;           ///< whether the last piece came

    /// Makes room for a repetition in a sequence of so many tokens: a policy that hears none needs none.
    void hold(std::int64_t count) {
      scores.reserve(count);
      weights.reserve(count);
      if (std::ssize(rows) < count) rows.resize(static_cast<std::size_t>(count));
    }
    /// Returns the scores of one KV head, `[tokens]`.
    float* row(layer_id layer, std::int64_t head) noexcept { return scores.row(layer.value * heads + head); }

    template <class Archive>
    void archive(Archive& a) {
      a(scores, repeated.begin, repeated.end, complete);
      if constexpr (Archive::reads) {
        if (repeated.begin < 0 || repeated.end < repeated.begin || repeated.end > tokens) Archive::refuse();
      }
    }
    void truncate(std::int64_t from) noexcept {
      repeated.end = std::min(repeated.end, from);
      repeated.begin = std::min(repeated.begin, repeated.end);
    }
  };
  memory start(cache_shape const& shape) const {
    KVPOLICY_EXPECTS(sinks >= 0, "a softmax over " + std::to_string(sinks) + " first tokens; there can be 0 or more");
    memory made;
    made.scores = {shape.layers * shape.kv_heads, 1};
    made.weights = {shape.kv_heads, 1};
    made.heads = shape.kv_heads;
    made.tokens = shape.max_tokens;
    return made;
  }

  /// Scores the tokens that a piece repeats, in one layer.
  /// @param input  the piece's, with its queries; its tokens are the view's last
  /// @param exec  the executor
  /// @throws invalid_value if the piece neither goes on behind those before it nor begins anew
  template <class Input, executor Exec>
  void hear(Input const& input, Exec& exec) const {
    memory& m = input.memory;
    token_span const piece = input.prompt->repeats;
    bool const goes_on = !m.repeated.empty() && !m.complete;
    KVPOLICY_EXPECTS(!goes_on || piece.begin == m.repeated.end || piece.begin <= m.repeated.begin,
                     "a repetition of tokens from " + std::to_string(piece.begin) + " on, where those from " +
                         std::to_string(m.repeated.begin) + " up to " + std::to_string(m.repeated.end) +
                         " were repeated; go on behind them, or begin anew where they begin");
    std::int64_t const first = std::min<std::int64_t>(sinks, piece.begin);
    std::int64_t const before = first + piece.end - piece.begin;
    std::int64_t const fresh = input.tokens - input.prompt->first;
    m.hold(input.tokens);
    auto const at = m.rows.begin();
    std::iota(at, at + first, 0);
    std::iota(at + first, at + before, static_cast<std::int32_t>(piece.begin));
    std::iota(at + before, at + before + fresh, static_cast<std::int32_t>(input.prompt->first));
    indexed_view const read{input.view, before + fresh, m.rows.data(), 0};
    table<float> const weights = m.weights.rows(0, input.heads.count, before);
    kvpolicy::window_attention(input.prompt->queries.of(input.heads, input.view.shape().group()),
                               read.keys(input.layer).of(input.heads),
                               {.of_group = group_merge::maximum, .queries = group_merge::maximum}, weights, exec);
    for (std::int64_t h = 0; h < weights.rows; ++h) {
      std::copy_n(weights.row(h) + first, piece.end - piece.begin, m.row(input.layer, input.heads.first + h) + piece.begin);
    }
    if (input.layer.value + 1 < input.view.shape().layers) return;
    m.repeated = {goes_on && piece.begin == m.repeated.end ? m.repeated.begin : piece.begin, piece.end};
    m.complete = piece.end == input.prompt->first;
  }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec&) const {
    for (std::int64_t h = 0; h < out.rows; ++h)
      std::copy_n(input.memory.row(input.layer, input.heads.first + h), out.columns, out.row(h));
  }
};

static_assert(scorer<repetition_attention>);

}  // namespace kvpolicy::scorers
