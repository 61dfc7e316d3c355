// Which policies have kernels for every step, by their parts.
#pragma once

#include <algorithm>
#include <concepts>
#include <string>
#include <type_traits>

#include "kvpolicy/gpu/drift/pivot_attention.hpp"
#include "kvpolicy/gpu/drift/step.hpp"
#include "kvpolicy/gpu/hierarchy/anchor_affinity.hpp"
#include "kvpolicy/gpu/hierarchy/step.hpp"
#include "kvpolicy/gpu/pages/current_attention.hpp"
#include "kvpolicy/gpu/pages/representatives.hpp"
#include "kvpolicy/gpu/pages/step.hpp"
#include "kvpolicy/gpu/pages/upper_bound.hpp"
#include "kvpolicy/gpu/retain/evicted.hpp"
#include "kvpolicy/gpu/retain/renewed.hpp"
#include "kvpolicy/gpu/retain/repeated.hpp"
#include "kvpolicy/gpu/retain/retained.hpp"
#include "kvpolicy/gpu/retain/streaming.hpp"
#include "kvpolicy/gpu/sentences/query_mean_dot.hpp"
#include "kvpolicy/gpu/sentences/step.hpp"
#include "kvpolicy/policy.hpp"

namespace kvpolicy::gpu {

/// Whether a retain, or a retrieve, has kernels for every step.
template <class Rule, class D>
concept decodable_retain = requires {
  sizeof(detail::decode_retain<Rule, D>);
};
template <class Rule, class D>
concept decodable_retrieve = requires {
  sizeof(detail::decode_retrieve<Rule, D>);
};
/// Whether the retrieve sees what the retain left by index, and a prompt's end fixes that for good.
template <class Retain, class Retrieve, class D>
inline constexpr bool indexed_for_good = std::conjunction_v<std::bool_constant<detail::decode_retain<Retain, D>::stays>,
                                                            std::bool_constant<detail::decode_retrieve<Retrieve, D>::by_index>>;
/// Whether the retrieve can choose among what the retain left.
template <class Retain, class Retrieve, class D>
concept decodable_together =
    std::same_as<Retain, keep_all> || std::same_as<Retrieve, keep_all> || indexed_for_good<Retain, Retrieve, D>;

/// Whether a policy's rules have kernels for every step. Others run by the four verbs with gpu_exec, which waits.
template <class Policy, class D>
concept decodable =
    decodable_retain<decltype(parts_t<Policy>::retain), D> && decodable_retrieve<decltype(parts_t<Policy>::retrieve), D> &&
    decodable_together<decltype(parts_t<Policy>::retain), decltype(parts_t<Policy>::retrieve), D>;

/// One static_assert for each part that can lack kernels.
template <class Parts, class D>
consteval bool fits_on_device() {
  using retain = decltype(Parts::retain);
  using retrieve = decltype(Parts::retrieve);
  static_assert(decodable_retain<retain, D>,
                "the retain's trigger and scorer have no kernels for every step: use triggers::prefill, or the four verbs with "
                "gpu_exec");
  if constexpr (!std::same_as<retrieve, keep_all>) {
    static_assert(scores_on_device<retrieve, D>,
                  "the retrieve's pool and scorer have no kernels: specialise gpu::unit_scores for them, or use the four verbs "
                  "with gpu_exec");
    static_assert(budgets_on_device<retrieve>, "the retrieve's budget reads scores, which the device alone has");
    static_assert(triggers_on_device<retrieve> || decodable_retrieve<retrieve, D>,
                  "the retrieve's trigger has no kernels: give it an on_device(), or use the four verbs with gpu_exec");
    static_assert(decodable_retrieve<retrieve, D>,
                  "the retrieve's selector has no kernels with this segmenter, window and trigger");
  }
  static_assert(
      !decodable_retain<retain, D> || !decodable_retrieve<retrieve, D> || decodable_together<retain, retrieve, D>,
      "the retrieve can't choose among what this retain leaves: its kernels go by index, and need a choice that stands");
  return true;
}

/// How a policy can wait for tokens of the answer: its planned steps read everything until then; or its choice, of a retain, a
/// retrieve or both, is a step of its own.
template <class Policy, class D>
concept waits_in_steps = std::same_as<decltype(parts_t<Policy>::retain), keep_all> && requires {
  requires detail::decode_retrieve<decltype(parts_t<Policy>::retrieve), D>::waits_in_steps;
};
template <class Policy, class D>
concept decides_late = !waits_in_steps<Policy, D> && requires {
  requires detail::decode_retain<decltype(parts_t<Policy>::retain), D>::can_wait;
  requires detail::decode_retrieve<decltype(parts_t<Policy>::retrieve), D>::can_wait;
};

/// Whether the retain's choices are made anew in steps of their own.
template <class Policy, class D>
concept retain_renews = requires {
  requires detail::decode_retain<decltype(parts_t<Policy>::retain), D>::decides_by_steps;
};

/// The parts of a policy that a decoder can run, in a cache of a shape. Throws invalid_value, unsupported.
template <class Policy, class D>
parts_t<Policy> decodable_parts_of(Policy const& policy, cache_shape const& shape, std::int64_t step_tokens) {
  kvpolicy::check(policy, shape);
  if (std::int64_t const after = requirements_of(policy).after; after != 0) {
    std::string const waits = "the policy's choice waits for " + std::to_string(after) + " tokens of the answer, ";
    if (!waits_in_steps<Policy, D> && !decides_late<Policy, D>)
      throw unsupported(waits +
                        "and has no kernels for that; set its after to 0, and call prefill() when the answer has that many");
    if (decides_late<Policy, D> && step_tokens > 1)
      throw unsupported(waits + "and a step brings up to " + std::to_string(step_tokens) +
                        "; let it bring 1, or set the policy's after to 0");
  }
  if (retain_renews<Policy, D> && step_tokens > 1)
    throw unsupported("the policy chooses anew every so many steps, of one token each, and a step brings up to " +
                      std::to_string(step_tokens) + "; let it bring 1");
  if constexpr (!std::same_as<decltype(parts_t<Policy>::retrieve), keep_all>) {
    using trigger = typename decltype(parts_t<Policy>::retrieve)::trigger_type;
    if (requirements_of(policy).next_step && !std::same_as<trigger, triggers::drift>)
      throw unsupported("the decoder on a GPU chooses for the next step by triggers::drift alone; set next_step to 0");
  }
  // Of latent rows (MLA) attention takes any number of heads; a scorer's kernel refuses what it can't take at its first launch.
  bool const latent = shape.head_dim > max_head_dim || shape.values_dim() != shape.head_dim;
  expect_row("a decode step", std::max(shape.head_dim, shape.values_dim()), latent ? 1 : shape.group(),
             latent ? max_wide_dim : max_head_dim);
  return parts_of(policy);
}

/// Whether a rule's lists follow from lengths alone, at every step.
template <class State>
concept never_chooses = requires {
  requires std::bool_constant<State::idle()>::value;
};

/// Whether the host knows, when a step is planned, how many tokens each of its lists will name (decoder::listed).
template <class State>
concept counts_lists = requires(State const& state) {
  state.listed(layer_id{}, std::int64_t{}, head_id{}, std::int64_t{});
};
template <class Policy, class D>
concept known_counts = decodable<Policy, D> &&
    (std::same_as<decltype(parts_t<Policy>::retrieve), keep_all>
         ? counts_lists<detail::decode_retain<decltype(parts_t<Policy>::retain), D>>
         : counts_lists<detail::decode_retrieve<decltype(parts_t<Policy>::retrieve), D>>);

}  // namespace kvpolicy::gpu
