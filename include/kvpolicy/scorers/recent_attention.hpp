// Scorer recent_attention: scores a token by the attention of the last few queries, while decoding too (R-KV).
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "kvpolicy/detail/observed_queries.hpp"
#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/primitive/list_attention.hpp"
#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/primitive/window_attention.hpp"
#include "kvpolicy/score_input.hpp"

namespace kvpolicy::scorers {

/// Scores a token by the mean attention of the last `window` queries to it and its neighbours: the prompt's last ones when a
/// prompt ends, and those of the last steps while decoding (R-KV, Cai et al. 2025). Each softmax is over the list's tokens
/// before the window. The window's own tokens score 0, so the rule's window should protect as many recent tokens.
struct recent_attention {
  static constexpr signals needs = signals::keys | signals::observation_queries | signals::queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;
  static constexpr bool after_attention = true;

  std::int32_t window = 8;                        ///< queries that count
  smoothing smooth{smoothing::kind::maximum, 7};  ///< smooths the mean over neighbours in the list
  group_merge merged = group_merge::maximum;      ///< merges the query heads of a KV head, for each query

  /// The last queries of every layer, and buffers of one call.
  struct memory : no_memory {
    static constexpr bool hears_prompts = true;
    static constexpr bool hears_steps = true;
    static constexpr bool goes_on = true;

    /// Of a layer: queries of tokens [begin, end) are known.
    struct known {
      std::int64_t begin = 0;
      std::int64_t end = 0;
      float scale = 1;
    };
    std::vector<float> queries;  ///< `[layers, window, q_heads, head_dim]`; token t's at t % window
    std::vector<known> layers;
    std::int64_t window = 1;
    std::int64_t q_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t tokens = 0;         ///< max_tokens of the cache
    token_table<float> weights;      ///< `[kv_heads, tokens]` of a query
    token_table<float> sums;         ///< `[kv_heads, tokens]`
    std::vector<range_list> before;  ///< the lists' tokens before the window

    template <class Archive>
    void archive(Archive& a) {
      a(queries, layers);
      if constexpr (Archive::reads) {
        for (known const& one : layers) {
          if (one.begin < 0 || one.end < one.begin || one.end - one.begin > window || one.end > tokens) Archive::refuse();
        }
      }
    }
    void reserve(std::int64_t room) {
      queries.resize(layers.size() * static_cast<std::size_t>(window * q_heads * head_dim));
      weights.reserve(room);
      sums.reserve(room);
      for (range_list& list : before) list.reserve(static_cast<std::size_t>(room));
    }
    /// Forgets the queries of every token from `from` on.
    void truncate(std::int64_t from) noexcept {
      for (known& one : layers) {
        one.end = std::min(one.end, from);
        one.begin = std::min(one.begin, one.end);
      }
    }
    /// Takes queries of a token, of query heads from `first` on; those of tokens behind it are forgotten.
    void add(layer_id layer, std::int64_t token, std::int64_t first, query_heads const& of_token) {
      if (queries.empty()) reserve(1);
      known& one = layers[static_cast<std::size_t>(layer.value)];
      if (one.end != token && one.end != token + 1) one.begin = token;
      one.end = token + 1;
      one.begin = std::max(std::min(one.begin, token), one.end - window);
      one.scale = of_token.scale;
      for (std::int64_t h = 0; h < of_token.heads; ++h)
        std::copy_n(of_token.head(h), head_dim, row(layer, token) + (first + h) * head_dim);
    }
    float* row(layer_id layer, std::int64_t token) noexcept {
      return queries.data() + (layer.value * window + token % window) * q_heads * head_dim;
    }
  };
  memory start(cache_shape const& shape) const {
    memory made;
    made.window = std::clamp<std::int64_t>(window, 1, shape.max_tokens);
    made.q_heads = shape.q_heads;
    made.head_dim = shape.head_dim;
    made.tokens = shape.max_tokens;
    made.layers.resize(static_cast<std::size_t>(shape.layers));
    made.weights = made.sums = {shape.kv_heads, 1};
    made.before.resize(static_cast<std::size_t>(shape.kv_heads));
    return made;
  }

  template <class Window>
  void check(Window const& of_rule, cache_shape const& shape) const {
    check_protected(of_rule, window, shape);
  }

  /// Takes the prompt's last queries, of all heads.
  template <class Input, executor Exec>
  void begin(Input const& input, Exec&) const {
    query_window const last = last_queries(input.prompt, input.memory.window);
    std::int64_t const first = input.prompt_tokens - last.tokens;
    for (std::int64_t t = 0; t < last.tokens; ++t)
      input.memory.add(input.layer, first + t, 0, {last.at(t, 0), last.heads, last.head_stride, last.scale});
  }
  /// Takes a step's queries.
  template <class Input, executor Exec>
  void watch(Input const& input, Exec&) const {
    input.memory.add(input.layer, input.tokens - 1, input.heads.first * input.view.shape().group(), input.queries);
  }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    range_list& all = input.memory.before.front();
    all.clear();
    append(all, 0, std::min(out.columns, input.tokens - input.memory.window), reason::scored);
    weigh(input, std::span<range_list const>(&all, 1), out, exec);
  }
  template <class Input, executor Exec>
  void score_kept(Input const& input, std::span<range_list const> lists, table<float> out, Exec& exec) const {
    std::span const before = std::span(input.memory.before).first(lists.size());
    for (std::size_t l = 0; l < lists.size(); ++l) {
      before[l] = lists[l];
      kvpolicy::truncate(before[l], input.tokens - input.memory.window);
    }
    weigh(input, std::span<range_list const>(before), out, exec);
  }

 private:
  template <class Input, executor Exec>
  void weigh(Input const& input, std::span<range_list const> lists, table<float> out, Exec& exec) const {
    memory& m = input.memory;
    cache_shape const shape = input.view.shape();
    m.reserve(std::max(input.tokens, out.columns));
    table<float> const weights = m.weights.rows(0, input.heads.count, m.weights.room());
    table<float> const sums = m.sums.rows(0, input.heads.count, m.sums.room());
    auto const count_of = [&](std::int64_t h) { return token_count(list_of(lists, h)); };
    for (std::int64_t h = 0; h < out.rows; ++h) {
      std::fill_n(out.row(h), out.columns, 0.0f);
      std::fill_n(sums.row(h), count_of(h), 0.0f);
    }
    typename memory::known const& known = m.layers[static_cast<std::size_t>(input.layer.value)];
    for (std::int64_t t = known.begin; t < known.end; ++t) {
      query_heads const of_token =
          query_heads{m.row(input.layer, t), m.q_heads, m.head_dim, known.scale}.of(input.heads, shape.group());
      list_attention(of_token, input.keys(), lists, weights, exec, merged);
      for (std::int64_t h = 0; h < out.rows; ++h) {
        for (std::int64_t i = 0; i < count_of(h); ++i)
          sums(h, i) += weights(h, i) / static_cast<float>(known.end - known.begin);
      }
    }
    for (std::int64_t h = 0; h < out.rows; ++h) {
      auto const count = static_cast<std::size_t>(count_of(h));
      smooth_row(std::span<float const>(sums.row(h), count), smooth, std::span(out.row(h), count));
    }
  }
};

static_assert(evicting_scorer<recent_attention>);

}  // namespace kvpolicy::scorers
