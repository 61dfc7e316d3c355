// The input of scorers, and concepts that say whether a scorer, a pool and a selector fit together.
#pragma once

#include <concepts>
#include <span>
#include <type_traits>

#include "kvpolicy/concepts.hpp"

namespace kvpolicy {

/// What a scorer may read.
/// The table that a scorer writes has a row for each of `heads`, or one row if its granularity is coarser. For a retrieve, the
/// view shows only the retained tokens, in order.
template <class View, class Summaries, class Memory>
struct score_input {
  View const& view;
  layer_id layer{};
  head_range heads{};       ///< the KV heads to score
  std::int64_t tokens = 0;  ///< the choice is made among the view's first `tokens` tokens; the last of them is the newest
  std::int64_t prompt_tokens = 0;  ///< tokens of the prompt, retained or not; of a retain when a prompt ends: `tokens`
  Summaries& summaries;            ///< the pool's
  Memory& memory;                  ///< the scorer's
  query_heads queries{};           ///< during decoding: the current token's, of `heads` alone
  prompt_signals const* prompt{};  ///< at prefill: the prompt's signals, of all heads
  std::int64_t gone = 0;           ///< of a retain at prefill: tokens whose rows are gone, beside `tokens`

  /// The keys of `heads`, `[heads.count, tokens, head_dim]`.
  auto keys() const noexcept { return sliced(view.keys(layer)); }
  /// The values of `heads`, `[heads.count, tokens, head_dim]`.
  auto values() const noexcept { return sliced(view.values(layer)); }

 private:
  template <class Rows>
  Rows sliced(Rows all) const noexcept {
    all = all.of(heads);
    all.tokens = tokens;
    return all;
  }
};

/// Types that stand for any view and any executor in concepts. Their members are declared, never run.
namespace archetype {

/// Stands for any executor.
struct executor {
  using memory = host_memory;
  void pool_mean(auto&&...);
  void pool_bounds(auto&&...);
  void pool_mean_deviation(auto&&...);
  void score_dot(auto&&...);
  void score_bounds(auto&&...);
  void window_attention(auto&&...);
  void list_attention(auto&&...);
  void top_k(auto&&...);
  void attend(auto&&...);
  void attend_block(auto&&...);
  uncertainty entropy(std::span<float const>);
};

/// Stands for any view.
using view = strided_view<>;

}  // namespace archetype

static_assert(executor<archetype::executor>);

/// The summaries that a pool starts.
template <class Pool, class Segment>
using summaries_of = decltype(std::declval<Pool const&>().start(cache_shape{}, std::declval<Segment const&>()));
/// The memory that a scorer starts.
template <class Score>
using memory_of = decltype(std::declval<Score const&>().start(cache_shape{}));
/// The input of a scorer behind a pool.
template <class Score, class Pool, class Segment>
using input_of = score_input<archetype::view, summaries_of<Pool, Segment>, memory_of<Score>>;

/// A pool that adds a view's new tokens to its summaries.
/// Requires: `update(summaries, view, layer, heads, tokens, exec)`.
template <class Pool, class Segment>
concept updates = requires(Pool const& pool, summaries_of<Pool, Segment>& into, archetype::view const& view,
                           archetype::executor& exec) {
  pool.update(into, view, layer_id{}, head_range{}, std::int64_t{}, exec);
};

/// A scorer that writes scores.
/// Requires: `score(input, out, exec)`.
template <class Score, class Pool, class Segment>
concept writes_scores = requires(Score const& score, input_of<Score, Pool, Segment> const& input, table<float> out,
                                 archetype::executor& exec) {
  score.score(input, out, exec);
};

/// A scorer that scores the tokens that are still retained.
/// Requires: `score_kept(input, lists, out, exec)`.
template <class Score, class Pool, class Segment>
concept scores_kept = evicting_scorer<Score> &&
    requires(Score const& score, input_of<Score, Pool, Segment> const& input, std::span<range_list const> lists,
             table<float> out, archetype::executor& exec) {
  score.score_kept(input, lists, out, exec);
};

/// A scorer that makes an anchor, with which a selector compares summaries.
/// Requires: `anchor(summaries, exec)`.
template <class Score, class Pool, class Segment>
concept makes_anchor = requires(Score const& score, summaries_of<Pool, Segment>& summaries, archetype::executor& exec) {
  { score.anchor(summaries, exec) } -> std::convertible_to<std::span<float const>>;
};

/// A budget that says how many units each list gets.
/// Requires: `allocate(request, scores, units, exec)`.
template <class Budget>
concept allocates = requires(Budget const& budget, budget_request const& request, table<float const> scores,
                             std::span<std::int32_t> units, archetype::executor& exec) {
  budget.allocate(request, scores, units, exec);
};

}  // namespace kvpolicy
