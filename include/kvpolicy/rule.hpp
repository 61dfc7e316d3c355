// Rules, composed of parts: which units stay (retain), or which of them a step reads (retrieve).
#pragma once

#include <algorithm>
#include <concepts>
#include <string>
#include <type_traits>

#include "kvpolicy/layering.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/score_input.hpp"

namespace kvpolicy {

/// What a rule, with its parameters, requires of an engine and a request.
struct requirements {
  signals needs = signals::none;
  scope granularity = scope::request;
  std::int64_t observation_queries = 0;  ///< how many of the prompt's last queries it reads; all_queries for every one
  bool keeps_all = false;
  bool evicts = false;         ///< may drop tokens during decoding
  std::int64_t after = 0;      ///< tokens of the answer to wait for before any token is dropped or left unread
  bool fixed_indices = false;  ///< as a retrieve, does not work with a retain that evicts
  bool whole_prompts = false;  ///< as a retain, refuses to continue a prompt if rows of earlier tokens are gone
  bool hides = false;          ///< as a retain, drops nothing: its tokens are what steps may read until the next prompt ends
  bool next_step = false;      ///< as a retrieve, chooses for the step after: request::ahead() tells which rows that reads
  bool relative = false;       ///< keeps a share of the tokens, not a fixed number
  std::int64_t unit = 1;       ///< the most tokens of a unit; a unit that is not full takes in later tokens
  layering layers{};
};

/// Chooses units by their scores, within a budget.
/// Requires: `coarsest`, the finest scope at which it chooses; `fits<Score, Pool, Segment, Budget>()`, which fails to compile,
/// with a message, if a part lacks what the selector calls; `check(rule, shape)`, which throws invalid_value;
/// `max_ranges(rule, shape)`, the most ranges of a list; `start(rule, shape)`, which returns its scratch memory for sequences
/// of up to shape.max_tokens tokens, and is called again when a sequence outgrows it (once, if it has a member `one_size`);
/// `select(rule, scratch, input, protected, exec, emit)`, which calls emit(list, begin, end) for what it takes, ascending.
/// Model: selectors::top. Not a model: a selector that reads keys.
template <class S, class Rule>
concept selector = part<S> && requires(S const& select, Rule const& rule, cache_shape const& shape) {
  select.check(rule, shape);
  { select.max_ranges(rule, shape) } -> std::convertible_to<std::int64_t>;
  select.start(rule, shape);
};

/// A rule composed of parts, in the order in which data passes through them.
/// The segmenter makes units, the pool summarises them, the scorer scores them, the budget says how many are kept, the selector
/// chooses, the window names tokens that are always kept, the trigger says when to choose anew, and `layers` how layers differ.
template <class Segment, class Pool, class Score, class Budget, class Select, class Window, class Trigger>
struct keep {
  static_assert(segmenter<Segment>, "the segmenter lacks one of: unit_size(), ragged, check()");
  static_assert(pooler<Pool, Segment>, "the pool lacks one of: needs, start(shape, segment) for this segmenter, its cut()");
  static_assert(updates<Pool, Segment>, "the pool lacks update(summaries, view, layer, heads, tokens, exec)");
  static_assert(scorer<Score>, "the scorer lacks one of: needs, granularity, of, start(shape), its memory's truncate(tokens)");
  static_assert(budgeter<Budget>,
                "the budget lacks one of: reads_scores, relative(), most_tokens(shape), of(request), check(shape)");
  static_assert(part<Select>, "the selector is no aggregate of parameters");
  static_assert(Select::template fits<Score, Pool, Segment, Budget>());
  static_assert(window_part<Window>, "the window lacks one of: at(tokens, prompt, budget), check(unit_size)");
  static_assert(trigger_part<Trigger>, "the trigger lacks one of: needs, while_decoding, start(shape), wants()");

  static constexpr signals needs = Pool::needs | Score::needs | Trigger::needs;
  static constexpr scope granularity = std::min(Score::granularity, Select::coarsest);
  using pool_type = Pool;
  using budget_type = Budget;
  using score_type = Score;
  using segment_type = Segment;
  using select_type = Select;
  using window_type = Window;
  using trigger_type = Trigger;

  Segment segment{};
  Pool pool{};
  Score score{};
  Budget budget{};
  Select select{};
  Window window{};
  Trigger trigger{};
  layering layers{};
  /// Of a retrieve: a choice serves the step after the one that made it, so that its rows can come meanwhile. The first choice
  /// serves its own step, too.
  bool next_step = false;

  /// Replaces the trigger.
  /// @param when  the new trigger
  /// @return the same rule with this trigger
  template <class Other>
  constexpr auto with(Other const& when) const {
    return keep<Segment, Pool, Score, Budget, Select, Window, Other>{segment, pool, score,  budget,   select,
                                                                     window,  when, layers, next_step};
  }
};

template <class Segment, class Pool, class Score, class Budget, class Select, class Window, class Trigger>
keep(Segment, Pool, Score, Budget, Select, Window, Trigger) -> keep<Segment, Pool, Score, Budget, Select, Window, Trigger>;
template <class Segment, class Pool, class Score, class Budget, class Select, class Window, class Trigger>
keep(Segment, Pool, Score, Budget, Select, Window, Trigger, layering, bool next_step = false)
    -> keep<Segment, Pool, Score, Budget, Select, Window, Trigger>;

/// The rule that keeps everything.
struct keep_all {
  /// As a retain: tokens of the answer that the retrieve waits for. Until then steps read everything.
  std::int32_t after = 0;

  static constexpr signals needs = signals::none;
  static constexpr scope granularity = scope::request;
};

/// A budget that shares the tokens of all layers out.
template <class Budget>
concept shares_over_layers = requires {
  Budget::across_layers;
};

/// Checks what a retain requires of its parts beyond their concepts. A part that does not fit fails a static_assert.
/// @return true
template <class Rule>
consteval bool fits_as_retain() {
  if constexpr (requires { typename Rule::score_type; }) {
    using score = typename Rule::score_type;
    using trigger = typename Rule::trigger_type;
    static_assert(selector<typename Rule::select_type, Rule>,
                  "the selector lacks one of: check(rule, shape), max_ranges(rule, shape), start(rule, shape)");
    static_assert(!trigger::while_decoding || scores_kept<score, typename Rule::pool_type, typename Rule::segment_type>,
                  "the retain's trigger fires while decoding, and its scorer can't say which token to drop then: it lacks "
                  "after_attention or score_kept(input, lists, out, exec); use triggers::prefill");
    static_assert(contains(signals::logits, trigger::needs),
                  "the retain's trigger reads queries; only a retrieve's trigger can");
    static_assert(!contains(score::needs, signals::queries) || contains(score::needs, signals::observation_queries),
                  "the retain's scorer reads a step's query, and where a prompt ends there is none; use one that observes the "
                  "prompt's queries");
    static_assert(!Rule::segment_type::ragged, "a retain's units are of one size; ragged ones are a retrieve's");
    static_assert(!shares_over_layers<typename Rule::budget_type> || contains(score::needs, signals::repetition),
                  "the budget shares tokens out to all layers, and the scorer scores one layer at a time; use "
                  "budgets::adaptive, or scorers::repetition_attention");
  }
  return true;
}
/// Checks what a retrieve requires of its parts beyond their concepts. A part that does not fit fails a static_assert.
/// @return true
template <class Rule>
consteval bool fits_as_retrieve() {
  if constexpr (requires { typename Rule::score_type; }) {
    using score = typename Rule::score_type;
    static_assert(selector<typename Rule::select_type, Rule>,
                  "the selector lacks one of: check(rule, shape), max_ranges(rule, shape), start(rule, shape)");
    static_assert(!contains(score::needs, signals::observation_queries) || contains(score::needs, signals::queries) ||
                      !Rule::trigger_type::while_decoding,
                  "the retrieve's scorer reads the prompt's queries alone, and its trigger fires while decoding; use "
                  "triggers::prefill");
    static_assert(!contains(score::needs, signals::repetition) && !shares_over_layers<typename Rule::budget_type>,
                  "the retrieve chooses by a repetition of the prompt; only a retain can");
  }
  return true;
}

/// Returns the needs of a part that its parameters use.
/// @param part  a pool or a scorer
/// @return part.wants() if there is one, else all of the part's needs
template <class Part>
constexpr signals wants_of(Part const& part) noexcept {
  if constexpr (requires { part.wants(); }) return part.wants();
  else return Part::needs;
}

/// A rule whose trigger can wait for the answer's first tokens.
template <class Rule>
concept waits_for_answers = requires(Rule const& rule) {
  rule.trigger.after;
};

/// Computes what keeping everything requires.
/// @param rule  the rule
/// @return the requirements
inline requirements requirements_of(keep_all const& rule) noexcept { return {.keeps_all = true, .after = rule.after}; }
/// Computes what a rule requires, with its parameters.
/// @param rule  the rule
/// @return the requirements
template <class... Parts>
requirements requirements_of(keep<Parts...> const& rule) noexcept {
  using type = keep<Parts...>;
  requirements made{.needs = wants_of(rule.pool) | wants_of(rule.score) | rule.trigger.wants(),
                    .granularity = type::granularity};
  if constexpr (contains(type::score_type::needs, signals::observation_queries)) made.observation_queries = rule.score.window;
  if constexpr (waits_for_answers<type>) {
    made.after = rule.trigger.after;
    made.hides = rule.trigger.hide;
  }
  made.evicts = (evicting_scorer<typename type::score_type> && type::trigger_type::while_decoding) || made.after > 0;
  made.fixed_indices = memory_of<typename type::score_type>::by_index;
  using memory = memory_of<typename type::score_type>;
  made.whole_prompts = (!memory::goes_on && (contains(made.needs, signals::rotation) || memory::hears_prompts)) ||
                       !std::same_as<typename type::pool_type, pools::none>;
  made.relative = rule.budget.relative();
  made.unit = rule.segment.unit_size();
  made.layers = rule.layers;
  made.next_step = rule.next_step;
  return made;
}

}  // namespace kvpolicy
