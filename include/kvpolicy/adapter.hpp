// What an adapter must provide: one concept for each signal, so that the compiler's message names the missing one.
#pragma once

#include "kvpolicy/selection.hpp"
#include "kvpolicy/signals.hpp"

namespace kvpolicy {

/// Says whether an adapter provides the signals that a policy needs.
/// @param which  the signals to look at
/// @return whether the adapter provides every signal of `which` that the policy needs
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
concept feeds_repetition = feeds<Adapter, Policy>(signals::repetition);
/// The adapter's attention can read lists as fine as the policy selects.
template <class Adapter, class Policy>
concept obeys_scope = Adapter::finest_scope >= Policy::granularity;

/// An adapter that can run a policy: the adapter provides every signal that the policy needs, and obeys the policy's scope.
/// Requires: the adapter's `provides` (signals) and `finest_scope`; the policy's `needs` and `granularity`.
template <class Adapter, class Policy>
concept serves = feeds_keys<Adapter, Policy> && feeds_values<Adapter, Policy> && feeds_queries<Adapter, Policy> &&
    feeds_observation_queries<Adapter, Policy> && feeds_rotation<Adapter, Policy> && feeds_logits<Adapter, Policy> &&
    feeds_token_ids<Adapter, Policy> && feeds_repetition<Adapter, Policy> && obeys_scope<Adapter, Policy>;

}  // namespace kvpolicy
