// Every concept of the library beside the view's own (view.hpp): parts, executors, and what an adapter must feed.
#pragma once

#include <concepts>
#include <span>
#include <type_traits>

#include "kvpolicy/primitive/attend.hpp"
#include "kvpolicy/primitive/entropy.hpp"
#include "kvpolicy/primitive/pool.hpp"
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

/// Cuts a sequence into units of equal size.
/// Requires: `unit_size()` in tokens, at least 1. Model: segment::pages. Not a model: a sentence splitter (ragged).
template <class S>
concept segmenter = part<S> && requires(S const& segment) {
  { segment.unit_size() } -> std::convertible_to<std::int64_t>;
};

/// Summarises units. `start` makes the summaries' owner, the only allocation; `update` folds in what the view has more.
/// Requires: `start(shape, segment)` giving a state with `truncate(tokens)`; `update(state, view, layer, tokens, exec)`.
/// Semantics: calling update twice changes nothing; truncate forgets every token from `tokens` on.
/// Model: pool::bounds. Not a model: a pool that reads queries (it scores).
template <class P, class Segment>
concept pooler = part<P> && requires(P const& pool, cache_shape const& shape, Segment const& segment) {
  { P::needs } -> std::convertible_to<signals>;
  {pool.start(shape, segment).truncate(std::int64_t{})};
};

/// Says how much each unit matters. Besides the two facts here, a scorer has `score(input, out, exec)`, which writes
/// out(list, unit) for every unit below out.columns (select::top), or `anchor(summaries, exec)` (select::cascade).
/// Semantics: reads no signal that it does not name; same input, same scores. Larger is better; NaN ranks last.
/// Model: score::upper_bound. Not a model: a scorer with a hidden counter.
template <class S>
concept scorer = part<S> && requires {
  { S::needs } -> std::convertible_to<signals>;
  { S::how_fine } -> std::convertible_to<scope>;
};

/// Says how many tokens a list may keep, protected ones included.
/// Requires: `most_tokens(shape)`, an upper limit; `check(shape)`, which throws invalid_value for a budget that can't be.
template <class B>
concept budgeter = part<B> && requires(B const& budget, cache_shape const& shape) {
  { budget.most_tokens(shape) } -> std::convertible_to<std::int64_t>;
  {budget.check(shape)};
};

/// The tokens that are read whatever their score: [0, sink_end), [recent_begin, tokens), the open unit from open_begin.
struct protected_tokens {
  std::int64_t sink_end = 0;
  std::int64_t recent_begin = 0;
  std::int64_t open_begin = 0;
};

/// Names the protected tokens of a sequence. `check(unit_size)` throws invalid_value for parameters that can't be, or that
/// would cut units. Semantics: sink_end <= recent_begin <= open_begin <= tokens; the last token is
/// always protected. Model: window::pages.
template <class W>
concept window_part = part<W> && requires(W const& window, std::int64_t tokens) {
  { window.at(tokens) } -> std::same_as<protected_tokens>;
  window.check(tokens);
};

/// Says when the choice is made anew during decoding; after prefill it always is.
/// Requires: `start()` giving a state with `restart()`, which forgets what was observed of tokens that are gone; `due(state)`;
/// `observe(state, tokens, outcome, exec)` after a step, where `needs` names logits. Model: trigger::entropy. Not a model: a
/// trigger that reads a clock (not reproducible).
template <class T>
concept trigger_part = part<T> && requires(T const& trigger, decltype(trigger.start())& state) {
  { T::needs } -> std::convertible_to<signals>;
  { trigger.due(state) } -> std::convertible_to<bool>;
  state.restart();
};

/// Runs the primitives; contracts are in primitive/. Model: host_exec, simd_exec. Not a model: a thread pool.
template <class E>
concept executor = requires(E& e, basic_rows<typename E::memory> r, table<float> f, table<float const> c, table<std::int32_t> i,
                            std::span<float> s, std::span<float const> v, std::span<std::int32_t const> u) {
  {e.pool_mean(r, pooling{}, f, std::int64_t{})};
  {e.pool_bounds(r, pooling{}, bounds_table{})};
  {e.score_dot(v, c, u, s)};
  {e.score_bounds(query_heads{}, bounds_table{}, std::int64_t{}, f)};
  {e.window_attention(query_window{}, r, smoothing{}, f)};
  {e.top_k(c, u, i)};
  {e.attend(query_heads{}, r, r, selection{}, f, s)};
  { e.entropy(v) } -> std::same_as<uncertainty>;
};

/// An executor that reaches a view's memory: a device view is not for a host executor.
template <class E, class View>
concept executor_for = executor<E> && std::same_as<typename E::memory, typename View::memory>;

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
concept feeds_window_queries = feeds<Adapter, Policy>(signals::window_queries);
template <class Adapter, class Policy>
concept feeds_attention = feeds<Adapter, Policy>(signals::attention);
template <class Adapter, class Policy>
concept feeds_logits = feeds<Adapter, Policy>(signals::logits);
template <class Adapter, class Policy>
concept feeds_token_ids = feeds<Adapter, Policy>(signals::token_ids);
template <class Adapter, class Policy>
concept obeys_scope = Adapter::finest_scope >= Policy::how_fine;

/// An adapter that can run a policy: it feeds every signal that the policy needs and obeys its scope.
/// Requires of the adapter: `provides` (signals) and `finest_scope`; of the policy: `needs` and `how_fine`.
template <class Adapter, class Policy>
concept serves = feeds_keys<Adapter, Policy> && feeds_values<Adapter, Policy> && feeds_queries<Adapter, Policy> &&
    feeds_window_queries<Adapter, Policy> && feeds_attention<Adapter, Policy> && feeds_logits<Adapter, Policy> &&
    feeds_token_ids<Adapter, Policy> && obeys_scope<Adapter, Policy>;

}  // namespace kvpolicy
