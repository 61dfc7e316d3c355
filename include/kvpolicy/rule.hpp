// A rule: which units exist (retain), or which of them a step reads (retrieve), as a composition of parts.
#pragma once

#include <algorithm>
#include <concepts>
#include <string>
#include <type_traits>

#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/score_input.hpp"

namespace kvpolicy {

/// How layers differ, for any rule that chooses for each layer.
struct layering {
  std::int32_t dense_first = 0;  ///< the first layers keep everything
  std::int32_t reuse = 1;        ///< of as many layers the first chooses, the others take over its choice (ChunkKV)

  bool dense(layer_id layer) const noexcept { return layer.value < dense_first; }
  /// The layer whose choice this layer has.
  layer_id leader(layer_id layer) const noexcept {
    return {dense(layer) ? layer.value : layer.value - (layer.value - dense_first) % reuse};
  }
};

/// What an engine and a request must know of a rule, with its parameters.
struct requirements {
  signals needs = signals::none;
  scope granularity = scope::request;
  std::int64_t observation_queries = 0;  ///< of the prompt's, the last ones that it looks at; all_queries for every one
  bool keeps_all = false;
  bool evicts = false;         ///< drops tokens while decoding
  std::int64_t after = 0;      ///< tokens of the answer that are waited for, before anything is dropped or left unread
  bool fixed_indices = false;  ///< can't do with a retain that does so
  bool whole_prompts = false;  ///< as a retain, decides a prompt that goes on by all tokens before, or refuses
  bool relative = false;       ///< keeps a share of the tokens, not a number of them
  std::int64_t unit = 1;       ///< the most tokens of a unit: later tokens may belong to one that has been begun
  layering layers{};
};

/// Chooses units by their scores, within a budget.
/// Requires: `coarsest`, the finest scope that it chooses at; `fits<Score, Pool, Segment, Budget>()`, which refuses parts that
/// lack what it asks of them, by name; of a whole rule `check(rule, shape)`, which throws invalid_value, `max_ranges(rule,
/// shape)`, the most ranges of a list, `start(rule, shape)`, its scratch, and `select(rule, scratch, input, protected, exec,
/// emit)`, which calls emit(list, begin, end) for what it takes, ascending. Model: selectors::top. Not a model: a selector that
/// reads keys.
template <class S, class Rule>
concept selector = part<S> && requires(S const& select, Rule const& rule, cache_shape const& shape) {
  select.check(rule, shape);
  { select.max_ranges(rule, shape) } -> std::convertible_to<std::int64_t>;
  select.start(rule, shape);
};

/// The parts of a rule, in the order in which data passes through them: which units exist, how they are summarised and scored,
/// how many are kept, which, what is kept in any case, when the choice is made anew, and how layers differ.
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

  /// The same with another trigger.
  template <class Other>
  constexpr auto with(Other const& when) const {
    return keep<Segment, Pool, Score, Budget, Select, Window, Other>{segment, pool,   score, budget,
                                                                     select,  window, when,  layers};
  }
};

template <class Segment, class Pool, class Score, class Budget, class Select, class Window, class Trigger>
keep(Segment, Pool, Score, Budget, Select, Window, Trigger) -> keep<Segment, Pool, Score, Budget, Select, Window, Trigger>;
template <class Segment, class Pool, class Score, class Budget, class Select, class Window, class Trigger>
keep(Segment, Pool, Score, Budget, Select, Window, Trigger, layering)
    -> keep<Segment, Pool, Score, Budget, Select, Window, Trigger>;

/// The rule that keeps everything.
struct keep_all {
  /// As a retain: tokens of the answer that the retrieve waits for. Until then all is read.
  std::int32_t after = 0;

  static constexpr signals needs = signals::none;
  static constexpr scope granularity = scope::request;
};

/// What a retain, or a retrieve, asks beyond its parts' own concepts. One static_assert a rule.
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
    static_assert(contains(signals::logits, trigger::needs), "the retain's trigger reads queries, which only a retrieve's may");
    static_assert(!Rule::segment_type::ragged, "a retain's units are of one size; ragged ones are a retrieve's");
  }
  return true;
}
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
  }
  return true;
}

/// Of a part's needs, those that its parameters have use for.
template <class Part>
constexpr signals wants_of(Part const& part) noexcept {
  if constexpr (requires { part.wants(); }) return part.wants();
  else return Part::needs;
}

/// Rules whose trigger can wait for the answer's first tokens.
template <class Rule>
concept waits_for_answers = requires(Rule const& rule) {
  rule.trigger.after;
};

inline requirements requirements_of(keep_all const& rule) noexcept { return {.keeps_all = true, .after = rule.after}; }
template <class... Parts>
requirements requirements_of(keep<Parts...> const& rule) noexcept {
  using type = keep<Parts...>;
  requirements made{.needs = wants_of(rule.pool) | wants_of(rule.score) | rule.trigger.wants(),
                    .granularity = type::granularity};
  if constexpr (contains(type::score_type::needs, signals::observation_queries)) made.observation_queries = rule.score.window;
  if constexpr (waits_for_answers<type>) made.after = rule.trigger.after;
  made.evicts = (evicting_scorer<typename type::score_type> && type::trigger_type::while_decoding) || made.after > 0;
  made.fixed_indices = memory_of<typename type::score_type>::by_index;
  made.whole_prompts = contains(made.needs, signals::rotation) || memory_of<typename type::score_type>::hears_prompts ||
                       !std::same_as<typename type::pool_type, pools::none>;
  made.relative = rule.budget.relative();
  made.unit = rule.segment.unit_size();
  made.layers = rule.layers;
  return made;
}

inline void check_after(std::int32_t after) {
  KVPOLICY_EXPECTS(after >= 0, "after is " + std::to_string(after) + " tokens; it can't be negative");
}
inline void check(keep_all const& rule, cache_shape const&) { check_after(rule.after); }

/// Waiting is of use where the scorer observes the last queries, and remembers nothing of the prompt beside them.
template <class... Parts>
void check_waiting(keep<Parts...> const& rule) {
  using score = typename keep<Parts...>::score_type;
  std::int32_t const after = rule.trigger.after;
  check_after(after);
  constexpr bool observes = contains(score::needs, signals::observation_queries) && !memory_of<score>::hears_prompts;
  KVPOLICY_EXPECTS(
      after == 0 || observes,
      "after is " + std::to_string(after) + ", and the scorer looks at no queries of the answer's first tokens; set it to 0");
}

/// Throws invalid_value for parameters that can't be, on a cache of this shape.
template <class... Parts>
void check(keep<Parts...> const& rule, cache_shape const& shape) {
  rule.segment.check();
  rule.budget.check(shape);
  rule.window.check(rule.segment.unit_size());
  if constexpr (contains(keep<Parts...>::needs, signals::observation_queries)) {
    KVPOLICY_EXPECTS(rule.score.window >= 1,
                     "a window of " + std::to_string(rule.score.window) + " queries; it needs at least 1");
  }
  if constexpr (waits_for_answers<keep<Parts...>>) check_waiting(rule);
  layering const& layers = rule.layers;
  KVPOLICY_EXPECTS(layers.dense_first >= 0 && layers.reuse >= 1,
                   std::to_string(layers.dense_first) + " dense layers and one choice for " + std::to_string(layers.reuse) +
                       "; the first must not be negative, the second at least 1");
  if (keep<Parts...>::granularity == scope::request) {
    KVPOLICY_EXPECTS(layers.dense_first == 0 && layers.reuse == 1,
                     "layers can't differ under a policy that makes one choice for the whole request");
  }
  rule.select.check(rule, shape);
}

inline void check_retrieve(keep_all const&, cache_shape const&) noexcept {}
/// check(), and that a retrieve reads the current token.
template <class... Parts>
void check_retrieve(keep<Parts...> const& rule, cache_shape const& shape) {
  check(rule, shape);
  if constexpr (waits_for_answers<keep<Parts...>>)
    KVPOLICY_EXPECTS(rule.trigger.after == 0,
                     "a retrieve reads few tokens from the first step on; set its trigger's after to 0");
  KVPOLICY_EXPECTS(rule.window.at(shape.max_tokens, shape.max_tokens).recent_begin < shape.max_tokens,
                   "the window of a retrieve must hold the current token; give it at least 1 recent token or page");
}

}  // namespace kvpolicy
