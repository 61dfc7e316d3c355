// The concepts of parts and executors. (view.hpp has the view's concept, rule.hpp the selector's, adapter.hpp an adapter's.)
#pragma once

#include <concepts>
#include <functional>
#include <span>
#include <string>
#include <type_traits>

#include "kvpolicy/primitive/attend.hpp"
#include "kvpolicy/primitive/attend_block.hpp"
#include "kvpolicy/primitive/entropy.hpp"
#include "kvpolicy/primitive/kept_scores.hpp"
#include "kvpolicy/primitive/list_attention.hpp"
#include "kvpolicy/primitive/pool.hpp"
#include "kvpolicy/primitive/prompt_scores.hpp"
#include "kvpolicy/primitive/score.hpp"
#include "kvpolicy/primitive/top_k.hpp"
#include "kvpolicy/primitive/window_attention.hpp"
#include "kvpolicy/selection.hpp"
#include "kvpolicy/signals.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// An aggregate of parameters with defaults, and nothing else. Mutable state belongs to the object that its start() returns.
/// Model: any aggregate of numbers. Not a model: a struct with a std::vector.
template <class P>
concept part = std::is_trivially_copyable_v<P> && std::is_aggregate_v<P>;

/// The memory of a scorer that remembers nothing. Other memories inherit it and replace the members that differ.
struct no_memory {
  static constexpr bool by_index = false;       ///< whether the retained tokens must keep their indices
  static constexpr bool hears_prompts = false;  ///< whether the scorer has begin(input, exec), called at prefill
  static constexpr bool hears_steps = false;    ///< whether the scorer has watch(input, exec), called before attention
  static constexpr bool goes_on = false;        ///< whether a prompt may go on where rows of earlier tokens are gone
  void truncate(std::int64_t) noexcept {}
  void cut(layer_id, head_range, std::int64_t) noexcept {}
};

/// Makes room in a part's memory for a sequence of so many tokens, if the memory has reserve(tokens).
/// A memory with it takes nothing that depends on the sequence's length when it is started: it grows with the sequence. One
/// without it is started for the longest sequence.
/// @param memory  what start() of a scorer, a pool or a trigger returned
/// @param tokens  tokens of the sequence
template <class Memory>
void make_room(Memory& memory, std::int64_t tokens) {
  if constexpr (requires { memory.reserve(tokens); }) memory.reserve(tokens);
}

/// The kind of a statistic: a count is visited once, a series once for each of its values, in order.
enum class statistic : std::uint8_t { count, series };
/// Receives what a policy did: the kind, the name and a value of each statistic.
using statistic_visitor = std::function<void(statistic, char const* what, double value)>;

/// Cuts a sequence into units of consecutive tokens.
/// Requires: `unit_size()`, the tokens of each unit but the last, or of the longest unit if units are ragged; `ragged`, whether
/// units differ in length; `check()`, which throws invalid_value for impossible parameters. A ragged segmenter also has
/// `behind(before, token_id, length)`: what is known behind a token, its unit's `length`-th; mark_ends: the unit ends.
/// Model: segments::pages; segments::sentences (ragged). Not a model: a splitter that looks at text.
template <class S>
concept segmenter = part<S> && requires(S const& segment) {
  { segment.unit_size() } -> std::convertible_to<std::int64_t>;
  { S::ragged } -> std::convertible_to<bool>;
  segment.check();
};

/// Summarises units.
/// Requires: `needs`, the signals that the pool reads; `start(shape, segment)`, which returns the summaries, a state with
/// `cut(layer, heads, tokens)`; `update(state, view, layer, heads, tokens, exec)`, which adds the view's new tokens. A pool may
/// have `begin(state, prompt)`, called for each prompt before `update`, and `wants()`, the needs that these parameters use.
/// Semantics: only `start`, and the state's `reserve(tokens)` where it has one, allocate; a second `update` changes nothing;
/// `cut` forgets every token from `tokens` on. Model: pools::bounds. Not a model: a pool that reads queries (it scores).
template <class P, class Segment>
concept pooler = part<P> && requires(P const& pool, cache_shape const& shape, Segment const& segment) {
  { P::needs } -> std::convertible_to<signals>;
  pool.start(shape, segment).cut(layer_id{}, head_range{}, std::int64_t{});
};

/// What a scorer scores: each token (the selector then merges the scores of a unit), or each unit.
enum class scored : std::uint8_t { tokens, units };

/// Scores units: how much each of them matters now.
/// Requires: `needs`, the signals that the scorer reads; `granularity`, the scope of its scores; `of`, what it scores;
/// `start(shape)`, which returns its memory. For selectors::top and selectors::fill also `score(input, out, exec)`, which
/// writes out(list, column) for every column below out.columns, with a list for each of input.heads, or one for all. For
/// selectors::cascade, `anchor(summaries, exec)` instead. A scorer that needs observation_queries has `window`, their number.
/// A scorer may have `check(window, shape)`, which throws invalid_value for a rule's window that it does not work with.
/// The memory is no_memory or inherits it: `truncate(tokens)` forgets by position, `cut(layer, heads, indices)` by index.
/// Semantics: a scorer reads only signals that it names; the same input gives the same scores; larger is better; NaN ranks
/// last. Model: scorers::upper_bound. Not a model: a scorer with a hidden counter.
template <class S>
concept scorer = part<S> && requires(S const& score, cache_shape const& shape) {
  { S::needs } -> std::convertible_to<signals>;
  { S::granularity } -> std::convertible_to<scope>;
  { S::of } -> std::convertible_to<scored>;
  score.start(shape).truncate(std::int64_t{});
};

/// Scores, during decoding, the tokens that are still retained, so that a retain can evict the least important ones.
/// Requires: `score_kept(input, lists, out, exec)`, which writes out(list, i) for the i-th token of each list;
/// `after_attention`, whether a step still reads the tokens that it evicts.
/// Model: scorers::accumulated_attention. Not a model: scorers::window_attention, which needs the prompt's queries.
template <class S>
concept evicting_scorer = scorer<S> && requires {
  { S::after_attention } -> std::convertible_to<bool>;
};

/// The question to a budget: how many units of `unit_size` tokens may a list keep, beside the protected tokens?
struct budget_request {
  cache_shape const& shape;
  layer_id layer{};
  head_range heads{};          ///< the KV heads whose lists are asked for; none: the one that gets the fewest
  std::int64_t tokens = 0;     ///< tokens among which the choice is made
  std::int64_t prompt = 0;     ///< tokens of the prompt
  std::int64_t gone = 0;       ///< tokens whose rows are gone, beside `tokens`
  std::int64_t forced = 0;     ///< tokens of the budget that the protected tokens take
  std::int64_t recent = 0;     ///< recent tokens that the window names
  std::int64_t unit_size = 1;  ///< tokens

  /// Tokens of the sequence, also those that are gone: a ratio is a share of these.
  std::int64_t seen() const noexcept { return tokens + gone; }
};

/// Decides how many tokens a list may keep, protected tokens included.
/// Requires: `most_tokens(shape)`, the most tokens of any list; `of(request)`, the tokens of the longest list that is asked
/// for; `check(shape)`, which throws invalid_value for an impossible budget; `allocate(request, scores, units, exec)`, which
/// writes how many units each list gets; `reads_scores`, whether `allocate` reads the scores; `relative()`, whether the number
/// of tokens follows the sequence's length. Model: budgets::tokens. Not a model: a budget that depends on time.
template <class B>
concept budgeter = part<B> && requires(B const& budget, cache_shape const& shape, budget_request const& request) {
  { B::reads_scores } -> std::convertible_to<bool>;
  { budget.relative() } -> std::convertible_to<bool>;
  { budget.most_tokens(shape) } -> std::convertible_to<std::int64_t>;
  { budget.of(request) } -> std::convertible_to<std::int64_t>;
  {budget.check(shape)};
};

/// The tokens that are kept whatever their score: [0, sink_end) and [recent_begin, tokens).
/// The open unit, which is not complete yet, begins at open_begin.
struct protected_tokens {
  std::int64_t sink_end = 0;
  std::int64_t recent_begin = 0;
  std::int64_t open_begin = 0;
  std::int64_t counted = 0;  ///< tokens of the budget that they take; the open unit may count as a whole unit
  std::int64_t recent = 0;   ///< recent tokens that the window names, even if a budget can't hold them
  std::int64_t beside = 0;   ///< of [0, sink_end): first tokens that take nothing of the budget
};

/// Checks that a budget holds what a window always keeps.
/// @param budget,forced  tokens
/// @throws invalid_value if it does not
inline void expect_room(std::int64_t budget, std::int64_t forced) {
  KVPOLICY_EXPECTS(budget >= forced, "a budget of " + std::to_string(budget) + " tokens can't hold the " +
                                         std::to_string(forced) +
                                         " that its window always keeps; raise the budget or shrink the window");
}

/// Names the protected tokens of a sequence.
/// Requires: `at(tokens, prompt, budget)`, the protected tokens of the first `tokens`, of which the first `prompt` are the
/// prompt's (INT64_MAX: not known), where a list may keep `budget` tokens; `check(unit_size)`, which throws invalid_value for
/// parameters that are impossible or would cut units. Semantics: sink_end <= recent_begin <= open_begin <= tokens. A retrieve's
/// window protects the last token. Model: windows::pages. Not a model: a window that depends on scores.
template <class W>
concept window_part = part<W> && requires(W const& window, std::int64_t tokens) {
  { window.at(tokens, tokens, tokens) } -> std::same_as<protected_tokens>;
  window.check(tokens);
};

/// Says whether a window protects a sequence's prompt while a retain evicts.
/// @param window  the window
/// @return its member `prompt`; false if it has none
template <window_part W>
constexpr bool keeps_prompt(W const& window) noexcept {
  if constexpr (requires { window.prompt; }) return window.prompt;
  else return false;
}

/// Decides when a rule chooses anew during decoding. (After prefill it always does.)
/// Requires: `needs`, the signals that the trigger reads; `wants()`, the needs that these parameters use; `while_decoding`,
/// whether the trigger can be due during decoding; `start(shape)`, which returns a memory with `restart()`, which forgets
/// observations of removed tokens; `due(memory, layer, head, since)`, `since` being the steps since the last choice. If `needs`
/// names logits, `observe(memory, tokens, outcome, exec)`, called after a step. If `needs` names queries, `begin` and `watch`
/// with (memory, input, prompt, exec), called at prefill and before attention. A trigger may have
/// `visit_statistics(memory, visitor)`, which reports what it did.
/// Model: triggers::entropy. Not a model: a trigger that reads a clock (not reproducible).
template <class T>
concept trigger_part = part<T> && requires(T const& trigger, cache_shape const& shape) {
  { T::needs } -> std::convertible_to<signals>;
  trigger.start(shape).restart();
  { trigger.wants() } -> std::convertible_to<signals>;
};

/// Implements the primitives that most policies read by; their contracts are in primitive/.
/// The others (row_norms, key_similarity, query_moments, gaussian_attention, partition_deviation, seen_attention,
/// following_queries, key_redundancy, rotated_scores) run by their definitions where rows are on the host and the executor has
/// no member of that name. Where rows are on a device, a policy that needs one does not compile, and the error names it.
/// Model: host_exec, simd_exec. Not a model: a thread pool.
template <class E>
concept executor = requires(E& e, basic_rows<typename E::memory> r, table<float> f, table<float const> c, table<std::int32_t> i,
                            std::span<float> s, std::span<float const> v, std::span<std::int32_t const> u) {
  {e.pool_mean(r, pooling{}, f, std::int64_t{})};
  {e.pool_bounds(r, pooling{}, bounds_table{})};
  {e.pool_mean_deviation(r, pooling{}, f.data, bounds_table{})};
  {e.score_dot(v, c, u, s)};
  {e.score_bounds(query_heads{}, bounds_table{}, std::int64_t{}, group_merge{}, f)};
  {e.window_attention(query_window{}, r, smoothing{}, f)};
  {e.list_attention(query_heads{}, r, std::span<range_list const>{}, group_merge{}, f)};
  {e.top_k(c, u, i)};
  {e.attend(query_window{}, r, r, selection{}, attention_terms{}, f, s)};
  {e.attend_block(query_window{}, r, r, selection{}, attention_terms{}, f)};
  { e.entropy(v) } -> std::same_as<uncertainty>;
};

/// An executor that reaches a view's memory. Not a model: a host executor, for a view of device memory.
template <class E, class View>
concept executor_for = executor<E> && std::same_as<typename E::memory, typename View::memory>;

/// An executor on one of several ranks (exec/ranked.hpp).
/// Requires: `sum(values)`, which sums the values of all ranks, in place.
template <class E>
concept summing_executor = executor<E> && requires(E& e, std::span<float> s) {
  e.sum(s);
};

}  // namespace kvpolicy
