// Scorer weighted_sum: the sum of two scorers' scores, each with a weight.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "kvpolicy/detail/token_table.hpp"
#include "kvpolicy/score_input.hpp"

namespace kvpolicy::scorers {

/// Sums the scores of two scorers, each times its weight. The scores are taken as they are: each scorer's header says on what
/// scale they lie.
/// @tparam First,Second  evicting scorers of tokens, with scores for each head; the rule's window should protect the tokens to
/// which either gives no score
template <class First, class Second>
struct weighted_sum {
  static_assert(First::granularity == scope::head && Second::granularity == scope::head && First::of == scored::tokens &&
                    Second::of == scored::tokens,
                "weighted_sum adds scores of tokens, for each head");
  static constexpr signals needs = First::needs | Second::needs;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;
  static constexpr bool after_attention = First::after_attention || Second::after_attention;

  First first{};
  Second second{};
  float of_first = 1;                                                     ///< weight of the first scorer's scores
  float of_second = 1;                                                    ///< weight of the second one's
  std::int32_t window = std::max(queries_of(first), queries_of(second));  ///< of the prompt's last queries, how many are needed

  /// What both remember, and a buffer.
  struct memory : no_memory {
    using of_first = memory_of<First>;
    using of_second = memory_of<Second>;
    static constexpr bool by_index = of_first::by_index || of_second::by_index;
    static constexpr bool hears_prompts = of_first::hears_prompts || of_second::hears_prompts;
    static constexpr bool hears_steps = of_first::hears_steps || of_second::hears_steps;
    static constexpr bool goes_on =
        (of_first::goes_on || !of_first::hears_prompts) && (of_second::goes_on || !of_second::hears_prompts);
    of_first first;
    of_second second;
    token_table<float> scores;  ///< `[kv_heads, tokens]`, the second's

    void reserve(std::int64_t tokens) {
      scores.reserve(tokens);
      make_room(first, tokens);
      make_room(second, tokens);
    }

    template <class Archive>
    void archive(Archive& a) {
      if constexpr (of_first::hears_prompts || of_first::hears_steps) a(first);
      if constexpr (of_second::hears_prompts || of_second::hears_steps) a(second);
    }
    void truncate(std::int64_t from) {
      first.truncate(from);
      second.truncate(from);
    }
    void cut(layer_id layer, head_range heads, std::int64_t indices) {
      first.cut(layer, heads, indices);
      second.cut(layer, heads, indices);
    }
  };
  memory start(cache_shape const& shape) const {
    memory made;
    made.first = first.start(shape);
    made.second = second.start(shape);
    made.scores = {shape.kv_heads, 1};
    return made;
  }

  template <class Window>
  void check(Window const& of_rule, cache_shape const& shape) const {
    std::int32_t const wanted = std::max(queries_of(first), queries_of(second));
    KVPOLICY_EXPECTS(window >= wanted, "weighted_sum::window is " + std::to_string(window) +
                                           ", and its scorers read the last " + std::to_string(wanted) +
                                           " queries; set it to as many");
    if constexpr (requires { first.check(of_rule, shape); }) first.check(of_rule, shape);
    if constexpr (requires { second.check(of_rule, shape); }) second.check(of_rule, shape);
  }

  template <class Input, executor Exec>
  void begin(Input const& input, Exec& exec) const {
    if constexpr (memory_of<First>::hears_prompts) first.begin(with(input, input.memory.first), exec);
    if constexpr (memory_of<Second>::hears_prompts) second.begin(with(input, input.memory.second), exec);
  }
  template <class Input, executor Exec>
  void watch(Input const& input, Exec& exec) const {
    if constexpr (memory_of<First>::hears_steps) first.watch(with(input, input.memory.first), exec);
    if constexpr (memory_of<Second>::hears_steps) second.watch(with(input, input.memory.second), exec);
  }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    input.memory.scores.reserve(std::max(out.columns, input.tokens));
    table<float> const other = input.memory.scores.rows(0, out.rows, out.columns);
    first.score(with(input, input.memory.first), out, exec);
    second.score(with(input, input.memory.second), other, exec);
    add(out, other);
  }
  template <class Input, executor Exec>
  void score_kept(Input const& input, std::span<range_list const> lists, table<float> out, Exec& exec) const {
    std::int64_t most = 0;
    for (range_list const& list : lists) most = std::max(most, token_count(list));
    out.columns = most;
    input.memory.scores.reserve(most);
    table<float> const other = input.memory.scores.rows(0, out.rows, most);
    first.score_kept(with(input, input.memory.first), lists, out, exec);
    second.score_kept(with(input, input.memory.second), lists, other, exec);
    add(out, other);
  }

 private:
  template <class Score>
  static constexpr std::int32_t queries_of(Score const& score) noexcept {
    if constexpr (contains(Score::needs, signals::observation_queries)) return score.window;
    else return 0;
  }
  template <class View, class Summaries, class Own, class Memory>
  static score_input<View, Summaries, Memory> with(score_input<View, Summaries, Own> const& input, Memory& memory) {
    return {input.view,      input.layer, input.heads,   input.tokens, input.prompt_tokens,
            input.summaries, memory,      input.queries, input.prompt, input.gone};
  }
  void add(table<float> out, table<float const> other) const {
    for (std::int64_t h = 0; h < out.rows; ++h) {
      for (std::int64_t i = 0; i < out.columns; ++i) out(h, i) = of_first * out(h, i) + of_second * other(h, i);
    }
  }
};

}  // namespace kvpolicy::scorers
