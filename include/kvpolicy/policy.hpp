// Policies, as compositions of parts, and the four verbs that an engine calls: start, prefill, choose, observe.
#pragma once

#include <algorithm>
#include <concepts>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kvpolicy/concepts.hpp"
#include "kvpolicy/policy_state.hpp"

namespace kvpolicy {

/// One act, retain or retrieve: which units exist, how they are summarised and scored, how many are kept, which, what is
/// read in any case, and when the choice is made anew.
template <segmenter Segment, pooler<Segment> Pool, scorer Score, budgeter Budget, part Select, window_part Window,
          trigger_part Trigger>
struct keep {
  static constexpr signals needs = Pool::needs | Score::needs | Trigger::needs;
  static constexpr scope how_fine = Score::how_fine;

  Segment segment{};
  Pool pool{};
  Score score{};
  Budget budget{};
  Select select{};
  Window window{};
  Trigger trigger{};
};

template <class... Parts>
keep(Parts...) -> keep<Parts...>;

/// The act that keeps everything.
struct keep_all {
  static constexpr signals needs = signals::none;
  static constexpr scope how_fine = scope::request;
};

/// retain: decides, when the prompt ends and when its trigger is due, which tokens exist at all; tokens that come later are
/// kept until the next decision. retrieve: decides which units a step reads; its window slides with every step.
/// One of the two is keep_all in this version.
template <class Retain, class Retrieve>
  requires(std::same_as<Retain, keep_all> || std::same_as<Retrieve, keep_all>)
struct policy {
  static constexpr signals needs = Retain::needs | Retrieve::needs;
  static constexpr scope how_fine = std::max(Retain::how_fine, Retrieve::how_fine);
  static constexpr bool retains = !std::same_as<Retain, keep_all>;
  static constexpr bool keeps_all = std::same_as<Retain, Retrieve>;

  Retain retain{};
  Retrieve retrieve{};

  /// The one act that is not keep_all.
  constexpr auto const& act() const noexcept {
    if constexpr (retains) return retain;
    else return retrieve;
  }
};

template <class Retain, class Retrieve>
policy(Retain, Retrieve) -> policy<Retain, Retrieve>;

/// A policy, or a preset: an aggregate of parameters whose parts() is a policy.
template <class P>
concept preset = part<P> && requires(P const& p) {
  p.parts();
};

template <class P>
constexpr auto parts_of(P const& p) {
  if constexpr (preset<P>) return p.parts();
  else return p;
}

template <class P>
using parts_t = decltype(parts_of(std::declval<P const&>()));

template <class P>
concept policy_like = part<P> && requires(parts_t<P> parts) {
  { parts_t<P>::needs } -> std::convertible_to<signals>;
  { parts_t<P>::how_fine } -> std::convertible_to<scope>;
  parts.act();
};

/// What prefill is told beside the view.
struct prompt_signals {
  std::int64_t first = 0;  ///< the first token that is new; 0 for a new prompt
  query_window queries{};  ///< the last queries, where the policy needs them
};

/// What observe is told of a step.
struct step_outcome {
  std::span<float const> logits;  ///< `[vocabulary]`, where the policy needs them
};

/// What a scorer may read.
template <class View, class Summaries>
struct score_input {
  View const& view;
  layer_id layer;
  std::int64_t tokens = 0;  ///< how many tokens the choice is made among
  Summaries& summaries;
  query_heads queries{};
  query_window window{};
};

/// Throws invalid_value for parameters that can't be, on a cache of this shape; start() does so first.
template <policy_like Policy>
void check(Policy const& policy, cache_shape const& shape) {
  if constexpr (!parts_t<Policy>::keeps_all) {
    auto const parts = parts_of(policy);
    std::int64_t const unit = parts.act().segment.unit_size();
    KVPOLICY_EXPECTS(unit >= 1, "a unit of " + std::to_string(unit) + " tokens; it needs at least 1");
    parts.act().budget.check(shape);
    parts.act().window.check(unit);
    if constexpr (contains(parts_t<Policy>::needs, signals::window_queries)) {
      std::int64_t const window = parts.act().score.window;
      KVPOLICY_EXPECTS(window >= 1, "a window of " + std::to_string(window) + " queries; it needs at least 1");
    }
    parts.act().select.check(parts.act(), shape);
  }
}

/// A request begins. The only verb that allocates. Throws as check() does.
template <policy_like Policy>
policy_state<parts_t<Policy>> start(Policy const& policy, cache_shape const& shape) {
  check(policy, shape);
  return policy_state<parts_t<Policy>>(parts_of(policy), shape);
}

/// A layer's keys of a prompt, or of a further piece of one, are written. Call it for every layer, with first = the number
/// of tokens that were there before; whatever lay behind that is forgotten, so a shortened or replaced tail is no special
/// case. Throws unsupported where a needed signal is missing.
template <policy_like Policy, kv_cache_view View, executor_for<View> Exec>
void prefill(Policy const& policy, policy_state<parts_t<Policy>>& state, View const& view, layer_id layer,
             prompt_signals const& prompt, Exec& exec) {
  auto const parts = parts_of(policy);
  using parts_type = parts_t<Policy>;
  if constexpr (!parts_type::keeps_all) {
    auto const& act = parts.act();
    std::int64_t const tokens = view.tokens();
    if (layer.value == 0) state.begin_prompt(prompt.first, tokens);
    act.pool.update(state.summaries, view, layer, tokens, exec);
    if constexpr (parts_type::retains) {
      if (parts_type::how_fine != scope::request || layer.value == 0) {
        state.decide(act, view, layer, tokens, {}, prompt.queries, exec);
      }
    } else if (layer.value == 0) {
      state.forget_choice();
    }
  }
}

/// Before attention of one token, which is the view's last: its key must be there for `layer`, and for no other layer.
/// Layers are asked for in order; a request-scope choice is made at layer 0, from the tokens before this one, and stands
/// for all layers. If the view has not more tokens than at the last call, its tail was removed: that is followed.
/// The selection holds until the next verb on this state.
template <policy_like Policy, kv_cache_view View, executor_for<View> Exec>
selection choose(Policy const& policy, policy_state<parts_t<Policy>>& state, View const& view, layer_id layer,
                 query_heads const& queries, Exec& exec) {
  auto const parts = parts_of(policy);
  using parts_type = parts_t<Policy>;
  std::int64_t const tokens = view.tokens();
  if (layer.value == 0) state.begin_step(tokens);
  if constexpr (parts_type::keeps_all) {
    return state.everything(tokens);
  } else {
    auto const& act = parts.act();
    constexpr bool for_request = parts_type::how_fine == scope::request;
    if (for_request && layer.value != 0) return state.kept(layer);
    std::int64_t const known = for_request ? tokens - 1 : tokens;
    if constexpr (for_request) {
      for (std::int64_t l = 0; l < state.shape().layers; ++l) act.pool.update(state.summaries, view, {l}, known, exec);
    } else {
      act.pool.update(state.summaries, view, layer, known, exec);
    }
    if (!state.decided(layer) || act.trigger.due(state.trigger)) {
      if constexpr (parts_type::retains) state.decide(act, view, layer, tokens, queries, {}, exec);
      else state.decide(act, view, layer, known, queries, {}, exec);
    }
    if constexpr (parts_type::retains) state.extend(layer, tokens);
    else state.compose(layer, tokens, act.window.at(tokens));
    return state.kept(layer);
  }
}

/// After a step: what came of it, for triggers.
template <policy_like Policy, executor Exec>
void observe(Policy const& policy, policy_state<parts_t<Policy>>& state, step_outcome const& outcome, Exec& exec) {
  if constexpr (contains(parts_t<Policy>::needs, signals::logits)) {
    parts_of(policy).act().trigger.observe(state.trigger, state.tokens(), outcome, exec);
  }
}

}  // namespace kvpolicy
