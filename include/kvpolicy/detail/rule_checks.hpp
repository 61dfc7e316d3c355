// Checks of a rule's parameters, made before a request starts.
#pragma once

#include <string>

#include "kvpolicy/primitive/window_attention.hpp"
#include "kvpolicy/rule.hpp"

namespace kvpolicy {

/// Checks a number of tokens to wait for.
/// @param after  tokens of the answer
/// @throws invalid_value if `after` is negative
inline void check_after(std::int32_t after) {
  KVPOLICY_EXPECTS(after >= 0, "after is " + std::to_string(after) + " tokens; it can't be negative");
}
/// Checks the parameter of keep_all.
/// @param rule  the rule
/// @throws invalid_value if `rule.after` is negative
inline void check(keep_all const& rule, cache_shape const&) { check_after(rule.after); }

/// Checks that a rule which waits for the answer's first tokens has a use for them.
/// The scorer must observe the last queries, and must remember nothing else of the prompt.
/// @param rule  a rule whose trigger has `after`
/// @throws invalid_value if `after` is negative, or is not 0 with another scorer
template <class... Parts>
void check_waiting(keep<Parts...> const& rule) {
  using score = typename keep<Parts...>::score_type;
  std::int32_t const after = rule.trigger.after;
  check_after(after);
  constexpr bool observes = contains(score::needs, signals::observation_queries) && !memory_of<score>::hears_prompts;
  KVPOLICY_EXPECTS(after == 0 || observes,
                   "after is " + std::to_string(after) + ", but the scorer reads no queries of the answer; set `after` to 0");
}

/// Checks a rule's parameters on a cache.
/// @param rule  the rule
/// @param shape  the sequence's cache
/// @throws invalid_value if a parameter is impossible
template <class... Parts>
void check_parts(keep<Parts...> const& rule, cache_shape const& shape) {
  rule.segment.check();
  rule.budget.check(shape);
  rule.window.check(rule.segment.unit_size());
  if constexpr (contains(keep<Parts...>::needs, signals::observation_queries)) {
    KVPOLICY_EXPECTS(rule.score.window >= 1,
                     "a window of " + std::to_string(rule.score.window) + " queries; it needs at least 1");
  }
  if constexpr (requires { rule.score.smooth.width; }) {
    KVPOLICY_EXPECTS(
        rule.score.smooth.how == smoothing::kind::none || (rule.score.smooth.width >= 1 && rule.score.smooth.width % 2 == 1),
        "scores are smoothed over " + std::to_string(rule.score.smooth.width) +
            " neighbouring tokens; the width is odd, from 1 on");
  }
  if constexpr (requires { rule.score.check(rule.window, shape); }) rule.score.check(rule.window, shape);
  if constexpr (waits_for_answers<keep<Parts...>>) check_waiting(rule);
  layering const& layers = rule.layers;
  KVPOLICY_EXPECTS(layers.dense_first >= 0 && layers.reuse >= 1 && layers.whole >= 0,
                   "dense_first is " + std::to_string(layers.dense_first) + ", reuse is " + std::to_string(layers.reuse) +
                       " and whole is " + std::to_string(layers.whole) +
                       "; dense_first and whole must be at least 0, reuse at least 1");
  KVPOLICY_EXPECTS(layers.leaders.empty() || layers.reuse == 1,
                   "reuse is " + std::to_string(layers.reuse) + ", and leaders name the groups; give one of the two");
  std::int64_t const last = layers.leaders.last_up_to(layer_set::most);
  KVPOLICY_EXPECTS(last < shape.layers, "layer " + std::to_string(last) + " is to lead, of a model with " +
                                            std::to_string(shape.layers) + " layers; give layers that it has");
  if (keep<Parts...>::granularity == scope::request) {
    KVPOLICY_EXPECTS(layers.dense_first == 0 && !layers.shares() && layers.whole == 0,
                     "the policy makes one choice for all layers; set dense_first to 0 and reuse to 1, and name no leaders");
  }
  if constexpr (contains(keep<Parts...>::needs, signals::repetition)) {
    KVPOLICY_EXPECTS(rule.trigger.after == 0 && !rule.trigger.hide && layers.dense_first == 0 && !layers.shares() &&
                         layers.whole == 0 && rule.segment.unit_size() == 1,
                     "a choice by a repetition is one of single tokens, of all layers; leave the trigger, the layering and the "
                     "segmenter as they are made");
  }
  rule.select.check(rule, shape);
}

/// Checks a retain: its parts, and that its choice, which drops tokens, is for the step that makes it.
/// @param rule  the rule
/// @param shape  the sequence's cache
/// @throws invalid_value if a parameter is impossible
template <class... Parts>
void check(keep<Parts...> const& rule, cache_shape const& shape) {
  KVPOLICY_EXPECTS(!rule.next_step, "next_step is set for a retain, whose choice drops tokens; it is for a retrieve");
  check_parts(rule, shape);
}

/// Accepts keep_all, which has nothing to check as a retrieve.
inline void check_retrieve(keep_all const&, cache_shape const&) noexcept {}
/// Checks a retrieve: its parts, and that it reads the current token from the first step on.
/// @param rule  the rule
/// @param shape  the sequence's cache
/// @throws invalid_value if a parameter is impossible, the trigger waits, or the window does not hold the current token
template <class... Parts>
void check_retrieve(keep<Parts...> const& rule, cache_shape const& shape) {
  check_parts(rule, shape);
  if constexpr (waits_for_answers<keep<Parts...>>)
    KVPOLICY_EXPECTS(
        rule.trigger.after == 0 && !rule.trigger.hide,
        "a retrieve can't wait for the answer's first tokens, nor hide; set its trigger's `after` and `hide` to 0");
  KVPOLICY_EXPECTS(!rule.next_step || !(rule.layers.shares() || keep<Parts...>::granularity == scope::request),
                   "next_step is set, and layers share a choice, which is made before the later ones read it; leave one of the "
                   "two");
  KVPOLICY_EXPECTS(rule.window.at(shape.max_tokens, shape.max_tokens - 1).recent_begin < shape.max_tokens,
                   "the window of a retrieve must hold the current token; give it at least 1 recent token or page");
}

}  // namespace kvpolicy
