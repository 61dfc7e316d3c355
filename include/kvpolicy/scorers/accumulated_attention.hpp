// Scorer accumulated_attention: scores a token by the attention that it received so far (H2O).
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/score_input.hpp"
#include "kvpolicy/scorers/window_attention.hpp"

namespace kvpolicy::scorers {

/// Scores a token by the attention that it received so far, from every query that saw it.
/// While decoding, the scores grow by the softmax over the kept tokens (H2O, Zhang et al. 2023, arXiv 2306.14048).
struct accumulated_attention {
  static constexpr signals needs = signals::keys | signals::observation_queries | signals::queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;
  static constexpr bool after_attention = true;

  /// How the weights of the queries that saw a token become its score.
  enum class reduction : std::uint8_t { sum, mean };
  friend constexpr auto names_of(reduction) noexcept { return std::array{"sum", "mean"}; }

  bool mean = false;                  ///< divide the sum by the number of counted queries that saw the token
  std::int32_t window = all_queries;  ///< queries; how many of the prompt's last ones count

  /// The sums of attention weights that the tokens received.
  struct memory : no_memory {
    static constexpr bool hears_prompts = true;
    token_table<float> sums;       ///< `[layers, kv_heads, tokens]`
    std::int64_t lists = 0;        ///< layers * kv_heads
    std::int64_t heads = 0;        ///< KV heads of a layer
    std::int64_t first_query = 0;  ///< token of the first query that counts

    template <class Archive>
    void archive(Archive& a) {
      a(sums, first_query);
    }
    void reserve(std::int64_t tokens) { sums.reserve(tokens); }
    /// Returns the sums of one KV head, `[tokens]`.
    float* row(layer_id layer, std::int64_t head) noexcept { return sums.row(layer.value * heads + head); }
    /// Sets the sums of every token from `from` on to 0.
    void truncate(std::int64_t from) noexcept {
      for (std::int64_t i = 0; i < lists && from < sums.room(); ++i) std::fill(sums.entry(i, from), sums.row(i + 1), 0.0f);
    }
  };
  memory start(cache_shape const& shape) const {
    std::int64_t const lists = shape.layers * shape.kv_heads;
    return {{}, {lists, 1}, lists, shape.kv_heads, 0};
  }

  /// Computes every token's sum over the prompt's counted queries, at the prompt's end.
  template <class Input, executor Exec>
  void begin(Input const& input, Exec& exec) const {
    query_window const queries = last_queries(input.prompt, window).of(input.heads, input.view.shape().group());
    input.memory.reserve(input.tokens);
    table<float> const sums{input.memory.row(input.layer, input.heads.first), input.heads.count, input.tokens,
                            input.memory.sums.stride()};
    seen_attention(queries, input.keys(), sums, exec);
    input.memory.first_query = input.tokens - queries.tokens;
    for (std::int64_t h = 0; h < sums.rows; ++h) {
      for (std::int64_t t = 0; t < input.tokens; ++t) sums(h, t) *= seen(input, t);
    }
  }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec&) const {
    for (std::int64_t h = 0; h < out.rows; ++h) {
      float const* const sums = input.memory.row(input.layer, input.heads.first + h);
      for (std::int64_t t = 0; t < out.columns; ++t) out(h, t) = mean ? sums[t] / seen(input, t) : sums[t];
    }
  }

  /// Adds the current query's attention over the kept tokens, then scores these tokens.
  template <class Input, executor Exec>
  void score_kept(Input const& input, std::span<range_list const> lists, table<float> out, Exec& exec) const {
    list_attention(input.queries, input.keys(), lists, out, exec);
    input.memory.reserve(input.tokens);
    for (std::int64_t h = 0; h < out.rows; ++h) {
      float* const sums = input.memory.row(input.layer, input.heads.first + h);
      std::int64_t i = 0;
      for (token_range const& range : list_of(lists, h)) {
        for (std::int64_t t = range.begin; t < range.end; ++t, ++i) {
          sums[t] += out(h, i);
          out(h, i) = mean ? sums[t] / seen(input, t) : sums[t];
        }
      }
    }
  }

 private:
  /// Returns how many of the counted queries saw a token.
  template <class Input>
  static float seen(Input const& input, std::int64_t token) noexcept {
    return static_cast<float>(input.tokens - std::max(token, input.memory.first_query));
  }
};

static_assert(evicting_scorer<accumulated_attention>);

}  // namespace kvpolicy::scorers
