// Every concept of the library beside the view's own (view.hpp): parts, executors, and what an adapter must feed.
#pragma once

#include <concepts>
#include <functional>
#include <span>
#include <type_traits>

#include "kvpolicy/primitive/attend.hpp"
#include "kvpolicy/primitive/attend_block.hpp"
#include "kvpolicy/primitive/entropy.hpp"
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

/// A part describes; it holds parameters with defaults and nothing else. Mutable state is start()'s to make.
/// Model: any aggregate of numbers. Not a model: a struct with a std::vector.
template <class P>
concept part = std::is_trivially_copyable_v<P> && std::is_aggregate_v<P>;

/// The memory of a scorer that remembers nothing, and what others inherit to say only how they differ. `hears_prompts`,
/// `hears_steps`: the scorer has begin(input, exec), watch(input, exec). `by_index`: it can't do without the retained tokens'
/// indices staying as they are.
struct no_memory {
  static constexpr bool by_index = false;
  static constexpr bool hears_prompts = false;
  static constexpr bool hears_steps = false;
  void truncate(std::int64_t) noexcept {}
  void cut(layer_id, head_range, std::int64_t) noexcept {}
};

/// Visits what a policy did, by name: a count once, each value of a series in turn.
enum class statistic : std::uint8_t { count, series };
using statistic_visitor = std::function<void(statistic, char const* what, double value)>;

/// Cuts a sequence into units of consecutive tokens. `unit_size()`: tokens of every unit but the last; or, with `ragged`, of
/// the longest. Ragged units end where the segmenter's `ends(token id)` says so. `check()` throws invalid_value for parameters
/// that can't be.
/// Model: segments::pages; segments::sentences (ragged). Not a model: a splitter that looks at text.
template <class S>
concept segmenter = part<S> && requires(S const& segment) {
  { segment.unit_size() } -> std::convertible_to<std::int64_t>;
  { S::ragged } -> std::convertible_to<bool>;
  segment.check();
};

/// Summarises units. `start` makes the summaries' owner, the only allocation; `update` folds in what the view has more.
/// Requires: `start(shape, segment)` giving a state with `cut(layer, heads, tokens)`; `update(state, view, layer, heads,
/// tokens, exec)`. It may have `begin(state, prompt)`, which is told of each prompt before its keys, and `wants()`, what of its
/// needs these parameters have use for.
/// Semantics: calling update twice changes nothing; cut forgets every token from `tokens` on.
/// Model: pools::bounds. Not a model: a pool that reads queries (it scores).
template <class P, class Segment>
concept pooler = part<P> && requires(P const& pool, cache_shape const& shape, Segment const& segment) {
  { P::needs } -> std::convertible_to<signals>;
  pool.start(shape, segment).cut(layer_id{}, head_range{}, std::int64_t{});
};

/// Whose scores a scorer writes: one for each token, which the selector merges into units, or one for each unit.
enum class scored : std::uint8_t { tokens, units };

/// Says how much each unit matters. Besides these facts, a scorer has `start(shape)`, its memory (no_memory or what inherits
/// it: `truncate(tokens)` by position, `cut(layer, heads, indices)` by index, as for pools), and `score(input, out, exec)`,
/// which writes out(list, column) for every column below out.columns (selectors::top, selectors::fill), a list for each of
/// input.heads or one for all, or `anchor(summaries, exec)` (selectors::cascade). Semantics: reads no signal that it does not
/// name; same input, same scores. Larger is better; NaN ranks last. Model: scorers::upper_bound. Not a model: a scorer with a
/// hidden counter.
template <class S>
concept scorer = part<S> && requires(S const& score, cache_shape const& shape) {
  { S::needs } -> std::convertible_to<signals>;
  { S::granularity } -> std::convertible_to<scope>;
  { S::of } -> std::convertible_to<scored>;
  score.start(shape).truncate(std::int64_t{});
};

/// A scorer that can say, during decoding, which of the tokens that are still there matters least.
/// Requires: `score_kept(input, lists, out, exec)`: out(list, i) for the i-th token of each list; `after_attention`, whether
/// what a step evicts is still read by it. Model: scorers::accumulated_attention. Not a model: scorers::window_attention, which
/// needs the prompt's queries.
template <class S>
concept evicting_scorer = scorer<S> && requires {
  { S::after_attention } -> std::convertible_to<bool>;
};

/// What a budget is asked: how many units of `unit_size` may be kept beside the tokens that are kept anyway?
struct budget_request {
  cache_shape const& shape;
  layer_id layer{};
  head_range heads{};          ///< of the lists that are asked for
  std::int64_t tokens = 0;     ///< that the choice is made among
  std::int64_t prompt = 0;     ///< tokens of the prompt
  std::int64_t forced = 0;     ///< of the budget, spent on protected tokens
  std::int64_t recent = 0;     ///< that the window names
  std::int64_t unit_size = 1;  ///< tokens
};

/// Says how many tokens a list may keep, protected ones included.
/// Requires: `most_tokens(shape)` and `of(request)`, the most of any list and the fewest; `check(shape)`, which throws
/// invalid_value for a budget that can't be; `allocate(request, scores, units, exec)`, which writes how many units each
/// list gets; `reads_scores`; `relative()`, whether the number follows the sequence's length. Model: budgets::tokens. Not a
/// model: a budget that depends on time.
template <class B>
concept budgeter = part<B> && requires(B const& budget, cache_shape const& shape, budget_request const& request) {
  { B::reads_scores } -> std::convertible_to<bool>;
  { budget.relative() } -> std::convertible_to<bool>;
  { budget.most_tokens(shape) } -> std::convertible_to<std::int64_t>;
  { budget.of(request) } -> std::convertible_to<std::int64_t>;
  {budget.check(shape)};
};

/// The tokens that are read whatever their score: [0, sink_end), [recent_begin, tokens), the open unit from open_begin.
struct protected_tokens {
  std::int64_t sink_end = 0;
  std::int64_t recent_begin = 0;
  std::int64_t open_begin = 0;
  std::int64_t counted = 0;  ///< of the budget: the open unit may count as whole
  std::int64_t recent = 0;   ///< how many recent tokens the window names, also where a budget can't hold them
};

/// Names the protected tokens of a sequence: `at(tokens, prompt, budget)`, where the first `prompt` tokens are the prompt's and
/// a list may keep `budget`. `check(unit_size)` throws invalid_value for parameters that can't be, or that would cut units.
/// Semantics: sink_end <= recent_begin <= open_begin <= tokens. A retrieve's window protects the last token. Model:
/// windows::pages.
template <class W>
concept window_part = part<W> && requires(W const& window, std::int64_t tokens) {
  { window.at(tokens, tokens, tokens) } -> std::same_as<protected_tokens>;
  window.check(tokens);
};

/// Says when the choice is made anew during decoding; after prefill it always is.
/// Requires: `start(shape)` giving a memory with `restart()`, which forgets what was observed of tokens that are gone;
/// `due(memory, layer, head, since)`, `since` steps after the last choice; `observe(memory, tokens, outcome, exec)` after a
/// step, where `needs` names logits; `begin` and `watch` (memory, input, prompt, exec) at prefill and before attention, where
/// it names queries; `wants()`, what of its needs these parameters have use for. It may have `visit_statistics(memory,
/// statistic_visitor)`, what it did. Model: triggers::entropy. Not a model: a trigger that reads a clock (not reproducible).
template <class T>
concept trigger_part = part<T> && requires(T const& trigger, cache_shape const& shape) {
  { T::needs } -> std::convertible_to<signals>;
  trigger.start(shape).restart();
  { trigger.wants() } -> std::convertible_to<signals>;
};

/// Runs the primitives; contracts are in primitive/. Model: host_exec, simd_exec. Not a model: a thread pool.
template <class E>
concept executor = requires(E& e, basic_rows<typename E::memory> r, table<float> f, table<float const> c, table<std::int32_t> i,
                            std::span<float> s, std::span<float const> v, std::span<std::int32_t const> u) {
  {e.pool_mean(r, pooling{}, f, std::int64_t{})};
  {e.pool_bounds(r, pooling{}, bounds_table{})};
  {e.pool_mean_deviation(r, pooling{}, f.data, bounds_table{})};
  {e.score_dot(v, c, u, s)};
  {e.score_bounds(query_heads{}, bounds_table{}, std::int64_t{}, group_merge{}, f)};
  {e.window_attention(query_window{}, r, smoothing{}, f)};
  {e.seen_attention(query_window{}, r, f)};
  {e.following_queries(query_window{}, std::int64_t{}, r, std::int64_t{}, std::int64_t{}, std::int64_t{}, u.data(), f)};
  {e.list_attention(query_heads{}, r, std::span<range_list const>{}, f)};
  {e.row_norms(r, f)};
  {e.key_similarity(r, f)};
  {e.query_moments(query_window{}, rotation{}, std::int64_t{}, f, f)};
  {e.gaussian_attention(r, gaussian_queries{}, std::int64_t{}, f)};
  {e.partition_deviation(r, partitions{}, f)};
  {e.top_k(c, u, i)};
  {e.attend(query_heads{}, r, r, selection{}, attention_terms{}, f, s)};
  {e.attend_block(query_window{}, r, r, selection{}, attention_terms{}, f)};
  { e.entropy(v) } -> std::same_as<uncertainty>;
};

/// An executor that reaches a view's memory: a device view is not for a host executor.
template <class E, class View>
concept executor_for = executor<E> && std::same_as<typename E::memory, typename View::memory>;

/// An executor on one of several ranks: `sum(values)` adds up what all ranks give, in place (exec/ranked.hpp).
template <class E>
concept summing_executor = executor<E> && requires(E& e, std::span<float> s) {
  e.sum(s);
};

// What an adapter must feed. One concept a signal, so that the compiler's message names the one that is missing.
template <class Adapter, class Policy>
constexpr bool feeds(signals which) noexcept {
  return contains(Adapter::provides, which & Policy::needs);
}
template <class Adapter, class Policy>
concept feeds_keys = feeds<Adapter, Policy>(signals::keys);
template <class Adapter, class Policy>
concept feeds_values = feeds<Adapter, Policy>(signals::values);
template <class Adapter, class Policy>
concept feeds_queries = feeds<Adapter, Policy>(signals::queries);
template <class Adapter, class Policy>
concept feeds_observation_queries = feeds<Adapter, Policy>(signals::observation_queries);
template <class Adapter, class Policy>
concept feeds_rotation = feeds<Adapter, Policy>(signals::rotation);
template <class Adapter, class Policy>
concept feeds_logits = feeds<Adapter, Policy>(signals::logits);
template <class Adapter, class Policy>
concept feeds_token_ids = feeds<Adapter, Policy>(signals::token_ids);
template <class Adapter, class Policy>
concept obeys_scope = Adapter::finest_scope >= Policy::granularity;

/// An adapter that can run a policy: it feeds every signal that the policy needs and obeys its scope.
/// Requires of the adapter: `provides` (signals) and `finest_scope`; of the policy: `needs` and `granularity`.
template <class Adapter, class Policy>
concept serves = feeds_keys<Adapter, Policy> && feeds_values<Adapter, Policy> && feeds_queries<Adapter, Policy> &&
    feeds_observation_queries<Adapter, Policy> && feeds_rotation<Adapter, Policy> && feeds_logits<Adapter, Policy> &&
    feeds_token_ids<Adapter, Policy> && obeys_scope<Adapter, Policy>;

}  // namespace kvpolicy
