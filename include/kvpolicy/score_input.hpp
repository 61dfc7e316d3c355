// What scorers are given, and whether a scorer and a pool fit together.
#pragma once

#include <concepts>
#include <span>
#include <type_traits>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy {

/// What a scorer may read. `heads` are the KV heads that it is asked for, the table that it writes has a row for each (or one,
/// where its granularity is coarser); the view's rows are those of the retained tokens, in order; queries are its heads' alone.
template <class View, class Summaries, class Memory>
struct score_input {
  View const& view;
  layer_id layer{};
  head_range heads{};
  std::int64_t tokens = 0;         ///< how many tokens of the view the choice is made among; the last is now
  std::int64_t prompt_tokens = 0;  ///< of the sequence
  Summaries& summaries;
  Memory& memory;
  query_heads queries{};           ///< while decoding
  prompt_signals const* prompt{};  ///< at prefill

  /// The keys, or values, of its heads and its tokens: `[heads.count, tokens, head_dim]`.
  auto keys() const noexcept { return sliced(view.keys(layer)); }
  auto values() const noexcept { return sliced(view.values(layer)); }

 private:
  template <class Rows>
  Rows sliced(Rows all) const noexcept {
    all = all.of(heads);
    all.tokens = tokens;
    return all;
  }
};

/// Types that stand for any view and executor where a member is asked for before it is used. Declared, never run.
namespace archetype {

struct executor {
  using memory = host_memory;
  void pool_mean(auto&&...);
  void pool_bounds(auto&&...);
  void pool_mean_deviation(auto&&...);
  void score_dot(auto&&...);
  void score_bounds(auto&&...);
  void window_attention(auto&&...);
  void seen_attention(auto&&...);
  void following_queries(auto&&...);
  void list_attention(auto&&...);
  void row_norms(auto&&...);
  void key_similarity(auto&&...);
  void query_moments(auto&&...);
  void gaussian_attention(auto&&...);
  void partition_deviation(auto&&...);
  void top_k(auto&&...);
  void attend(auto&&...);
  void attend_block(auto&&...);
  uncertainty entropy(std::span<float const>);
};

using view = strided_view<>;

}  // namespace archetype

static_assert(executor<archetype::executor>);

template <class Pool, class Segment>
using summaries_of = decltype(std::declval<Pool const&>().start(cache_shape{}, std::declval<Segment const&>()));
template <class Score>
using memory_of = decltype(std::declval<Score const&>().start(cache_shape{}));
template <class Score, class Pool, class Segment>
using input_of = score_input<archetype::view, summaries_of<Pool, Segment>, memory_of<Score>>;

/// A pool that folds a view's new tokens into its summaries.
template <class Pool, class Segment>
concept updates = requires(Pool const& pool, summaries_of<Pool, Segment>& into, archetype::view const& view,
                           archetype::executor& exec) {
  pool.update(into, view, layer_id{}, head_range{}, std::int64_t{}, exec);
};

/// A scorer that writes scores: `score(input, out, exec)`.
template <class Score, class Pool, class Segment>
concept writes_scores = requires(Score const& score, input_of<Score, Pool, Segment> const& input, table<float> out,
                                 archetype::executor& exec) {
  score.score(input, out, exec);
};

/// A scorer that says which token matters least, of those that are still there: `score_kept(input, lists, out, exec)`.
template <class Score, class Pool, class Segment>
concept scores_kept = evicting_scorer<Score> &&
    requires(Score const& score, input_of<Score, Pool, Segment> const& input, std::span<range_list const> lists,
             table<float> out, archetype::executor& exec) {
  score.score_kept(input, lists, out, exec);
};

/// A scorer that compares summaries with an anchor: `anchor(summaries, exec)`.
template <class Score, class Pool, class Segment>
concept makes_anchor = requires(Score const& score, summaries_of<Pool, Segment>& summaries, archetype::executor& exec) {
  { score.anchor(summaries, exec) } -> std::convertible_to<std::span<float const>>;
};

/// A budget that says how many units each list gets: `allocate(request, scores, units, exec)`.
template <class Budget>
concept allocates = requires(Budget const& budget, budget_request const& request, table<float const> scores,
                             std::span<std::int32_t> units, archetype::executor& exec) {
  budget.allocate(request, scores, units, exec);
};

}  // namespace kvpolicy
