// A rule at work in one request: all that changes while it runs.
#pragma once

#include <concepts>
#include <span>

#include "kvpolicy/archive.hpp"
#include "kvpolicy/detail/layer_lists.hpp"
#include "kvpolicy/detail/retained_tokens.hpp"
#include "kvpolicy/rule.hpp"

namespace kvpolicy {

/// What a request asks of its retain and of its retrieve; each owns its rule.
/// Requires: `lists(layer)`, what is kept of a layer; `ahead(layer)`, what the next step will keep of the tokens so far, as far
/// as that is known; `reserve(tokens, ranges)`, room for a sequence of so many tokens, whose retain breaks a list up into so
/// many ranges; `max_ranges()`, the most ranges of a list then; `revision(layer)`, another number whenever tokens of those
/// lists were dropped; `truncate(tokens)`: those behind are gone, and triggers begin afresh; `cut(layer, heads, indices)`, the
/// same of what is retained, by index; `prefill`, `choose` and `observe`, as the verbs, with what is retained where it is a
/// retrieve; `wait(layer, tokens, prompt)`, as prefill, where the choice comes later, by prefill: a retain keeps all until
/// then, a retrieve hears the id of each token until then; `always_read(layer, head)`, how many of the last tokens that are
/// retained of a head steps look at whatever is chosen (all_tokens: every one); `by_steps()`, whether what a step reads depends
/// on which steps there were before, and not on their tokens alone; `visit_statistics(visitor)`, what it did since it was
/// started; `archive(a)`, see archived. Semantics: input was checked; layers come in order. Model: retain_state,
/// retrieve_state, keep_all_state, any_state. Not a model: a rule (it is not started).
template <class S, class View, class Exec>
concept rule_state = requires(S& s, S const& c, View const& view, layer_id layer, head_range heads,
                              retained_tokens const& retained, prompt_signals const& prompt, step_signals const& step,
                              step_outcome const& outcome, Exec& exec, std::int64_t n, statistic_visitor const& visit,
                              state_writer& writer, state_reader& reader) {
  { c.lists(layer) } -> std::same_as<std::span<range_list const>>;
  { c.ahead(layer) } -> std::same_as<std::span<range_list const>>;
  { c.max_ranges() } -> std::same_as<std::int64_t>;
  s.reserve(n, n);
  { c.revision(layer) } -> std::same_as<std::int64_t>;
  { c.always_read(layer, n) } -> std::same_as<std::int64_t>;
  { c.by_steps() } -> std::same_as<bool>;
  s.truncate(n);
  s.cut(layer, heads, n);
  s.prefill(view, layer, retained, prompt, exec);
  s.wait(layer, n, prompt);
  s.choose(view, layer, retained, step, exec);
  s.observe(n, outcome, exec);
  c.visit_statistics(visit);
  s.archive(writer);
  s.archive(reader);
};

}  // namespace kvpolicy
