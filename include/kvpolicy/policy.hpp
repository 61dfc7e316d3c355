// Policies, each a retain rule and a retrieve rule, and start(), which makes a request of a policy.
#pragma once

#include <algorithm>
#include <concepts>
#include <string>
#include <type_traits>

#include "kvpolicy/detail/rule_checks.hpp"
#include "kvpolicy/request.hpp"

namespace kvpolicy {

/// A retain rule and a retrieve rule. A method without one of the rules has keep_all in its place.
/// The retain decides which tokens exist at all, when the prompt ends and when its trigger is due; it keeps later tokens until
/// the next decision. The retrieve decides which units of the retained tokens a step reads; its window moves with every step.
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

/// A policy with its own parameters.
/// Requires: `parts()`, which returns a policy. Model: presets::quest. Not a model: a policy (it is its own parts).
template <class P>
concept preset = part<P> && requires(P const& p) {
  p.parts();
};

/// Returns the policy that a preset stands for.
/// @param p  the preset
/// @return its parts
template <preset P>
constexpr auto parts_of(P const& p) {
  return p.parts();
}
/// Returns a policy as it is.
/// @param p  the policy
/// @return a copy
template <class Retain, class Retrieve>
constexpr policy<Retain, Retrieve> parts_of(policy<Retain, Retrieve> const& p) {
  return p;
}

/// The policy that P is, or stands for.
template <class P>
using parts_t = decltype(parts_of(std::declval<P const&>()));

/// A policy or a preset.
template <class P>
concept policy_like = requires(parts_t<P> parts) {
  { parts_t<P>::needs } -> std::convertible_to<signals>;
  { parts_t<P>::granularity } -> std::convertible_to<scope>;
  parts.retain;
  parts.retrieve;
};

/// Computes what a policy, with its parameters, requires of an engine and a request.
/// `needs`, `granularity`, `observation_queries` and `unit` suffice for both rules, `keeps_all` holds if both rules keep all,
/// `next_step` is the retrieve's, and the other members are the retain's.
/// @param policy  a policy or a preset
/// @return the requirements
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
  made.next_step = retrieve.next_step;
  if (made.after > 0 && made.observation_queries > 0) made.needs = made.needs | signals::queries;
  return made;
}

/// Computes the signals that a policy, with its parameters, needs.
/// @param policy  a policy or a preset
/// @return the signals
template <policy_like Policy>
signals needs_of(Policy const& policy) {
  return requirements_of(policy).needs;
}

/// Computes how many of a prompt's last queries prefill needs.
/// @param policy  a policy or a preset
/// @return the number of queries; all_queries for every one, 0 for none
template <policy_like Policy>
std::int64_t observation_queries(Policy const& policy) {
  return requirements_of(policy).observation_queries;
}

/// Checks a policy against a cache. start() does so first.
/// @param policy  a policy or a preset
/// @param shape  the cache of the request
/// @throws invalid_value if the shape or a parameter is impossible
/// @throws unsupported if the two rules do not work together
template <policy_like Policy>
void check(Policy const& policy, cache_shape const& shape) {
  check(shape);
  auto const parts = parts_of(policy);
  check(parts.retain, shape);
  check_retrieve(parts.retrieve, shape);
  requirements const retain = requirements_of(parts.retain);
  requirements const retrieve = requirements_of(parts.retrieve);
  if (retain.after > 0 && std::max(retain.observation_queries, retrieve.observation_queries) == all_queries) {
    throw unsupported(
        "after is " + std::to_string(retain.after) +
        ", but the policy needs every query of the prompt, and the request keeps only the last ones; set `after` to 0");
  }
  if (retain.after > 0 && !retain.keeps_all && retain.granularity == scope::request) {
    throw unsupported("after is " + std::to_string(retain.after) +
                      ", but the retain drops the same tokens in all layers, and can't wait; set `after` to 0");
  }
  KVPOLICY_EXPECTS(retain.layers.whole == 0, "the retain's layers have no rows to read but those they keep; set `whole` to 0");
  if (retain.keeps_all || retrieve.keeps_all) return;
  if (contains(retain.needs, signals::repetition) && retrieve.observation_queries > 0) {
    throw unsupported(
        "the retain has the prompt repeated, and the retrieve reads the queries of the prompt's end; take a retrieve that "
        "reads "
        "each step's query, such as quest's");
  }
  if (retain.granularity > retrieve.granularity) {
    throw unsupported(std::string("the retain keeps different tokens for each ") + name_of(retain.granularity) +
                      ", but the retrieve makes one choice for each " + name_of(retrieve.granularity) +
                      ": some heads would not have the chosen tokens; use a coarser retain, or a retrieve by head");
  }
  if (retain.evicts && retrieve.fixed_indices) {
    throw unsupported(
        "the retain drops tokens at every step, but the retrieve's blocks need tokens that stay; use a retain that decides "
        "once");
  }
  if (retrieve.layers.shares() && retain.granularity != scope::request) {
    throw unsupported(
        "layers share the retrieve's choice, but the retain keeps different tokens in each layer; set `reuse` to 1, and name "
        "no "
        "leaders");
  }
}

/// The request that start() makes of a policy.
template <policy_like Policy>
using request_of = request<decltype(parts_t<Policy>::retain), decltype(parts_t<Policy>::retrieve)>;

/// Begins a request. This is the verb that allocates.
/// @param policy  a policy or a preset; the request copies its rules
/// @param shape  the sequence's cache
/// @return the request
/// @throws invalid_value if the shape or a parameter is impossible
/// @throws unsupported if the two rules do not work together
template <policy_like Policy>
request_of<Policy> start(Policy const& policy, cache_shape const& shape) {
  check(policy, shape);
  auto const parts = parts_of(policy);
  return {parts.retain, parts.retrieve, shape};
}

/// Joins a policy that only retains with a policy that only retrieves.
/// @param retain  has keep_all as its retrieve
/// @param retrieve  has keep_all as its retain
/// @return one policy of both rules
/// @throws invalid_value if `retrieve` waits for the answer's first tokens (`after`): in the joined policy only the retain can
template <class Retain, class Retrieve>
constexpr policy<Retain, Retrieve> join(policy<Retain, keep_all> const& retain, policy<keep_all, Retrieve> const& retrieve) {
  KVPOLICY_EXPECTS(
      retrieve.retain.after == 0,
      "the retrieve waits for the answer (`after`), but in a policy with a retain only the retain can wait; set `after` there");
  return {retain.retain, retrieve.retrieve};
}
/// Joins two policies or presets, as join() does: `a + b` reads, by `b`, from the tokens that `a` retains.
/// @param retain  only retains
/// @param retrieve  only retrieves
/// @return one policy of both rules
/// @throws invalid_value as join() does
template <policy_like Retain, policy_like Retrieve>
  requires requires(parts_t<Retain> a, parts_t<Retrieve> b) { join(a, b); }
constexpr auto operator+(Retain const& retain, Retrieve const& retrieve) { return join(parts_of(retain), parts_of(retrieve)); }

namespace presets {
using kvpolicy::operator+;
}

}  // namespace kvpolicy
