// Policies: a retain and a retrieve; and start(), which makes a request of one.
#pragma once

#include <algorithm>
#include <concepts>
#include <string>
#include <type_traits>

#include "kvpolicy/request.hpp"
#include "kvpolicy/rule.hpp"

namespace kvpolicy {

/// retain: decides, when the prompt ends and when its trigger is due, which tokens exist at all; tokens that come later are
/// kept until the next decision. retrieve: decides which units of those a step reads; its window slides with every step.
/// A method without one of the rules has keep_all there.
template <class Retain, class Retrieve>
struct policy {
  static_assert(fits_as_retain<Retain>() && fits_as_retrieve<Retrieve>());

  static constexpr signals needs = Retain::needs | Retrieve::needs;
  static constexpr scope granularity = std::max(Retain::granularity, Retrieve::granularity);

  Retain retain{};
  Retrieve retrieve{};
};

template <class Retain, class Retrieve>
policy(Retain, Retrieve) -> policy<Retain, Retrieve>;

/// A policy with parameters of its own: an aggregate whose parts() is a policy.
template <class P>
concept preset = part<P> && requires(P const& p) {
  p.parts();
};

template <preset P>
constexpr auto parts_of(P const& p) {
  return p.parts();
}
template <class Retain, class Retrieve>
constexpr policy<Retain, Retrieve> parts_of(policy<Retain, Retrieve> const& p) {
  return p;
}

template <class P>
using parts_t = decltype(parts_of(std::declval<P const&>()));

/// A policy, or a preset.
template <class P>
concept policy_like = requires(parts_t<P> parts) {
  { parts_t<P>::needs } -> std::convertible_to<signals>;
  { parts_t<P>::granularity } -> std::convertible_to<scope>;
  parts.retain;
  parts.retrieve;
};

/// What an engine must know of a policy, with its parameters: of both rules, the more demanding.
template <policy_like Policy>
requirements requirements_of(Policy const& policy) {
  auto const parts = parts_of(policy);
  requirements made = requirements_of(parts.retain);
  requirements const retrieve = requirements_of(parts.retrieve);
  made.needs = made.needs | retrieve.needs;
  made.granularity = std::max(made.granularity, retrieve.granularity);
  made.observation_queries = std::max(made.observation_queries, retrieve.observation_queries);
  made.keeps_all = made.keeps_all && retrieve.keeps_all;
  made.unit = std::max(made.unit, retrieve.unit);
  if (made.after > 0 && made.observation_queries > 0) made.needs = made.needs | signals::queries;
  return made;
}

/// What a policy needs, with its parameters.
template <policy_like Policy>
signals needs_of(Policy const& policy) {
  return requirements_of(policy).needs;
}

/// How many of a prompt's last queries prefill must be given; all_queries for every one, 0 for none.
template <policy_like Policy>
std::int64_t observation_queries(Policy const& policy) {
  return requirements_of(policy).observation_queries;
}

/// Throws invalid_value for a shape or parameters that can't be, and unsupported for rules that can't be together; start() does
/// so first.
template <policy_like Policy>
void check(Policy const& policy, cache_shape const& shape) {
  check(shape);
  auto const parts = parts_of(policy);
  check(parts.retain, shape);
  check_retrieve(parts.retrieve, shape);
  requirements const retain = requirements_of(parts.retain);
  requirements const retrieve = requirements_of(parts.retrieve);
  if (retain.after > 0 && std::max(retain.observation_queries, retrieve.observation_queries) == all_queries) {
    throw unsupported("after is " + std::to_string(retain.after) +
                      ", and the policy looks at every query of the prompt, which are not kept so long; set it to 0");
  }
  if (retain.after > 0 && std::max(retain.granularity, retrieve.granularity) == scope::request) {
    throw unsupported("after is " + std::to_string(retain.after) +
                      ", and the policy makes one choice for all layers, which is due before their steps; set it to 0");
  }
  if (retain.keeps_all || retrieve.keeps_all) return;
  if (retain.granularity > retrieve.granularity) {
    throw unsupported(std::string("the retain keeps other tokens for each ") + name_of(retain.granularity) +
                      ", the retrieve makes one choice for each " + name_of(retrieve.granularity) +
                      ": it can't point at tokens that some heads do not have; retain no finer, or retrieve by head");
  }
  if (retain.evicts && retrieve.fixed_indices) {
    throw unsupported(
        "the retain drops tokens at every step, the retrieve's blocks are made of tokens that stay; use a retain that decides "
        "once");
  }
  if (retrieve.layers.reuse > 1 && retain.granularity != scope::request) {
    throw unsupported(
        "the retrieve takes over other layers' choices, the retain keeps other tokens in each layer; set reuse to 1");
  }
}

template <policy_like Policy>
using request_of = request<decltype(parts_t<Policy>::retain), decltype(parts_t<Policy>::retrieve)>;

/// A request begins. The only call that allocates. Throws as check() does.
template <policy_like Policy>
request_of<Policy> start(Policy const& policy, cache_shape const& shape) {
  check(policy, shape);
  auto const parts = parts_of(policy);
  return {parts.retain, parts.retrieve, shape};
}

/// A policy that retains alone, and one that retrieves alone: together one policy.
template <class Retain, class Retrieve>
constexpr policy<Retain, Retrieve> join(policy<Retain, keep_all> const& retain, policy<keep_all, Retrieve> const& retrieve) {
  KVPOLICY_EXPECTS(retrieve.retain.after == 0, "after is the retain's where there is one; set it there");
  return {retain.retain, retrieve.retrieve};
}
template <policy_like Retain, policy_like Retrieve>
  requires requires(parts_t<Retain> a, parts_t<Retrieve> b) { join(a, b); }
constexpr auto operator+(Retain const& retain, Retrieve const& retrieve) { return join(parts_of(retain), parts_of(retrieve)); }

namespace presets {
using kvpolicy::operator+;
}

}  // namespace kvpolicy
