// Policies, and the four verbs that an engine calls: start, prefill, choose, observe.
#pragma once

#include <algorithm>
#include <concepts>
#include <string>
#include <type_traits>

#include "kvpolicy/act.hpp"
#include "kvpolicy/policy_state.hpp"

namespace kvpolicy {

/// retain: decides, when the prompt ends and when its trigger is due, which tokens exist at all; tokens that come later are
/// kept until the next decision. retrieve: decides which units of those a step reads; its window slides with every step.
/// A method without one of the acts has keep_all there.
template <class Retain, class Retrieve>
struct policy {
  static constexpr signals needs = Retain::needs | Retrieve::needs;
  static constexpr scope how_fine = std::max(Retain::how_fine, Retrieve::how_fine);
  static constexpr bool retains = !std::same_as<Retain, keep_all>;
  static constexpr bool keeps_all = std::same_as<Retain, keep_all> && std::same_as<Retrieve, keep_all>;

  Retain retain{};
  Retrieve retrieve{};
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
  parts.retain;
  parts.retrieve;
};

/// How many of a prompt's last queries prefill must be given; all_queries for every one, 0 for none.
template <policy_like Policy>
constexpr std::int64_t prompt_queries(Policy const& policy) noexcept {
  auto const parts = parts_of(policy);
  return std::max(prompt_queries(parts.retain), prompt_queries(parts.retrieve));
}

/// What a policy needs, with its parameters.
template <policy_like Policy>
constexpr signals needs_of(Policy const& policy) noexcept {
  auto const parts = parts_of(policy);
  return needs_of(parts.retain) | needs_of(parts.retrieve);
}

/// Throws invalid_value for parameters that can't be, on a cache of this shape, and unsupported for acts that can't be
/// together; start() does so first.
template <policy_like Policy>
void check(Policy const& policy, cache_shape const& shape) {
  auto const parts = parts_of(policy);
  check(parts.retain, shape);
  check(parts.retrieve, shape);
  if (!keeps_all(parts.retrieve)) check_window(parts.retrieve, shape);
  if (keeps_all(parts.retain) || keeps_all(parts.retrieve)) return;
  if (scope_of(parts.retain) > scope_of(parts.retrieve)) {
    throw unsupported(std::string("the retain keeps other tokens for each ") + name_of(scope_of(parts.retain)) +
                      ", the retrieve makes one choice for each " + name_of(scope_of(parts.retrieve)) +
                      ": it can't point at tokens that some heads do not have; retain no finer, or retrieve by head");
  }
  if (evicts(parts.retain) && needs_ranks(parts.retrieve)) {
    throw unsupported(
        "the retain drops tokens at every step, the retrieve's blocks are made of tokens that stay; use a retain that decides "
        "once");
  }
  if (layers_of(parts.retrieve).reuse > 1 && scope_of(parts.retain) != scope::request) {
    throw unsupported(
        "the retrieve takes over other layers' choices, the retain keeps other tokens in each layer; set reuse to 1");
  }
}

/// A request begins. The only verb that allocates. Throws as check() does.
template <policy_like Policy>
policy_state<parts_t<Policy>> start(Policy const& policy, cache_shape const& shape) {
  check(policy, shape);
  return policy_state<parts_t<Policy>>(parts_of(policy), shape);
}

/// A layer's keys of a prompt, or of a further piece of one, are written. Call it for every layer, in order, with first = the
/// number of tokens that were there before; whatever lay behind that is forgotten, so a shortened or replaced tail is no
/// special case. The retain decides among all rows of the view. Throws unsupported where a needed signal is missing.
template <policy_like Policy, kv_cache_view View, executor_for<View> Exec>
void prefill(Policy const& policy, policy_state<parts_t<Policy>>& state, View const& view, layer_id layer,
             prompt_signals const& prompt, Exec& exec) {
  auto const parts = parts_of(policy);
  if (layer.value == 0) state.begin_prompt(prompt.first, view.tokens());
  state.retain.prefill(parts.retain, view, layer, prompt, exec);
  state.retrieve.prefill(parts.retrieve, view, layer, state.there(layer, view.tokens()), prompt, exec);
}

/// Before attention of one token, which is the view's last: its key must be there for `layer`, and for no other layer.
/// Layers are asked for in order; a request-scope choice is made at layer 0, from the tokens before this one, and stands
/// for all layers. If the view has not more tokens than at the last call, its tail was removed: that is followed.
/// The selection holds until the next verb on this state.
template <policy_like Policy, kv_cache_view View, executor_for<View> Exec>
selection choose(Policy const& policy, policy_state<parts_t<Policy>>& state, View const& view, layer_id layer,
                 step_signals const& signals, Exec& exec) {
  auto const parts = parts_of(policy);
  if (layer.value == 0) state.begin_step(view.tokens());
  state.retain.step(parts.retain, view, layer, signals, exec);
  if (state.retrieves()) state.retrieve.choose(parts.retrieve, view, layer, state.there(layer, view.tokens()), signals, exec);
  return state.kept(layer);
}

/// After a step: what came of it, for triggers.
template <policy_like Policy, executor Exec>
void observe(Policy const& policy, policy_state<parts_t<Policy>>& state, step_outcome const& outcome, Exec& exec) {
  auto const parts = parts_of(policy);
  state.retain.observe(parts.retain, state.tokens(), outcome, exec);
  state.retrieve.observe(parts.retrieve, state.tokens(), outcome, exec);
}

}  // namespace kvpolicy
