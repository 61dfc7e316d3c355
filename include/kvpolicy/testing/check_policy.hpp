// Checks that a policy keeps its promises: selections are well-formed, and every misuse of its verbs is refused.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <string>
#include <vector>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/testing/policy_misuse.hpp"

namespace kvpolicy::testing {

/// Checks one policy on random caches; see check_policy().
template <policy_like Policy, executor Exec>
class policy_check : policy_misuse<Policy, Exec> {
  using base = policy_misuse<Policy, Exec>;
  using base::policy_, base::exec_, base::options_, base::shape_, base::needs_, base::random_, base::inputs_, base::where_;
  using base::refused, base::fail;

 public:
  /// Prepares a check.
  /// @param policy  the policy
  /// @param exec  runs its primitives; must outlive the check
  /// @param options  on what to check it
  policy_check(Policy const& policy, Exec& exec, policy_options const& options) : base(policy, exec, options) {}

  /// Runs the check.
  /// @throws broken_promise at the first promise that is not kept
  void run() {
    for (content const what : {content::normal, content::tied, content::hostile}) {
      random_cache const cache(shape_, random_, what);
      auto state = start(policy_, shape_);
      auto twin = start(policy_, shape_);
      this->misuse_of_shapes();
      this->misuse_of_prompts(state, cache);
      prompt(state, cache, 0, options_.prompt / 2);
      prompt(state, cache, options_.prompt / 2, options_.prompt);
      prompt(twin, cache, 0, options_.prompt / 2);
      prompt(twin, cache, options_.prompt / 2, options_.prompt);
      if (contains(needs_, signals::repetition)) {
        this->misuse_of_repetitions(state, cache);
        repetition(state, cache);
        repetition(twin, cache);
      }
      for (std::int64_t n = options_.prompt + 1; n <= options_.prompt + options_.steps; ++n) {
        this->misuse_of_steps(state, cache, n);
        step(state, twin, cache, n);
      }
      std::int64_t const cut = options_.prompt + options_.steps / 2;  // a tail is removed
      state.cut(cut - 1);
      twin.cut(cut - 1);
      for (std::int64_t n = cut; n < cut + 4; ++n) step(state, twin, cache, n);
      twin.reserve(shape_.max_tokens);  // more room changes nothing
      for (std::int64_t n = cut + 4; n + most_step_tokens <= shape_.max_tokens;) n += several(state, twin, cache, n);
    }
  }

 private:
  template <class Request>
  void prompt(Request& state, random_cache const& cache, std::int64_t first, std::int64_t tokens) {
    for (std::int64_t l = 0; l < shape_.layers; ++l)
      state.prefill(cache.view(tokens), {l}, inputs_.prompt(first, tokens), exec_);
  }

  /// Repeats the prompt in two pieces.
  template <class Request>
  void repetition(Request& state, random_cache const& cache) {
    for (token_span const piece : {token_span{0, options_.prompt / 2}, token_span{options_.prompt / 2, options_.prompt}}) {
      for (std::int64_t l = 0; l < shape_.layers; ++l) {
        prompt_signals const said = inputs_.repetition(piece, options_.prompt, options_.prompt + options_.steps);
        state.prefill(cache.view(options_.prompt + options_.steps), {l}, said, exec_);
      }
    }
    prompt(state, cache, options_.prompt, options_.prompt);  // the repetition is gone
  }

  /// Makes a step of both requests; a call that was refused before it must have changed nothing.
  template <class Request>
  void step(Request& state, Request& twin, random_cache const& cache, std::int64_t n) {
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      selection const kept = state.choose(cache.view(n), {l}, inputs_.step(n), exec_);
      selection const like = twin.choose(cache.view(n), {l}, inputs_.step(n), exec_);
      where_ = name_of(shape_, n) + ", layer " + std::to_string(l) + ", seed " + std::to_string(options_.seed);
      if (!std::ranges::equal(kept.lists(), like.lists()))
        fail("the same verbs choose otherwise, or a refused one changed something");
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        well_formed(kept.of({h}), n);
        well_formed(state.retained({l}).of({h}), n);
        for (token_range const& range : kept.of({h})) {
          for (std::int32_t t = range.begin; t < range.end; ++t) {
            if (!reads(state.retained({l}).of({h}), t)) fail("token " + std::to_string(t) + " is read and not retained");
          }
        }
      }
    }
    refused("observe() without what the triggers need", contains(needs_, signals::logits), [&] { state.observe({}, exec_); });
    std::array const shares{.25f, .5f, .25f};
    refused("observe() with probabilities",
            contains(needs_, signals::logits) && std::same_as<typename Exec::memory, host_memory>,
            [&] { state.observe({.logits = shares}, exec_); });
    state.observe(inputs_.outcome(n), exec_);
    twin.observe(inputs_.outcome(n), exec_);
    refused("a step that is observed twice", true, [&] { state.observe(inputs_.outcome(n), exec_); });
  }

  /// Makes a step of several tokens, the first of which is the n-th, and one by one those that stay. Returns how many stay.
  template <class Request>
  std::int64_t several(Request& state, Request& twin, random_cache const& cache, std::int64_t n) {
    std::int64_t const brought = random_.between(1, most_step_tokens);
    std::int64_t const stay = random_.between(1, brought);
    std::int64_t const end = n + brought - 1;
    for (std::int64_t const bad : {std::int64_t{0}, most_step_tokens + 1}) {
      refused("choose() for " + std::to_string(bad) + " tokens", true, [&] {
        state.choose(cache.view(n), {0}, step_window{.tokens = bad, .queries = inputs_.step(n, 1).queries, .token_ids = {}},
                     exec_);
      });
    }
    step_window few = inputs_.step(end, brought);
    few.queries.tokens -= 1;
    refused("choose() with queries of fewer tokens", contains(needs_, signals::queries),
            [&] { state.choose(cache.view(end), {0}, few, exec_); });
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      selection const kept = state.choose(cache.view(end), {l}, inputs_.step(end, brought), exec_);
      selection const first = twin.choose(cache.view(n), {l}, inputs_.step(n), exec_);
      where_ = name_of(shape_, end) + ", " + std::to_string(brought) + " of them brought, layer " + std::to_string(l) +
               ", seed " + std::to_string(options_.seed);
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        range_list want = first.of({h});
        append(want, n, end, reason::open);
        if (kept.of({h}) != want) fail("several tokens read other than what the first one chooses, and themselves");
        well_formed(state.retained({l}).of({h}), end);
      }
    }
    for (std::int64_t i = n; i < n + stay; ++i) {
      for (std::int64_t l = 0; l < shape_.layers && i > n; ++l)
        static_cast<void>(twin.choose(cache.view(i), {l}, inputs_.step(i), exec_));
      state.observe(inputs_.outcome(i), exec_);
      twin.observe(inputs_.outcome(i), exec_);
    }
    return stay;
  }

  static bool reads(range_list const& list, std::int32_t token) {
    return std::ranges::any_of(list, [&](token_range const& r) { return r.begin <= token && token < r.end; });
  }

  void well_formed(range_list const& list, std::int64_t tokens) const {
    std::int64_t end = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].begin < end || list[i].end <= list[i].begin) fail("ranges overlap, descend or are empty");
      if (i > 0 && list[i].begin == end && list[i].why == list[i - 1].why)
        fail("two touching ranges have the same reason; merge them");
      end = list[i].end;
    }
    if (end != tokens)
      fail("the lists end at token " + std::to_string(end) + "; they must end with the current token, " +
           std::to_string(tokens));
  }
};

/// Checks a policy on random keys, ties, NaN and infinity among them.
/// Its choices must be ascending, disjoint ranges of retained tokens that end with the current token. The same verbs must
/// choose the same, and a step of several tokens, of which some stay, must be as good as steps of these one by one. Every
/// misuse of the verbs must be refused before anything has changed: an invalid shape, layer, order or number of tokens, a view
/// of another cache, a missing signal that the policy needs.
/// @param policy  the policy; its budget must fit `options.shape`
/// @param options  on what to check it
/// @param exec  runs its primitives
/// @throws broken_promise at the first promise that is not kept
template <policy_like Policy, executor Exec = host_exec>
void check_policy(Policy const& policy = {}, policy_options const& options = {}, Exec exec = {}) {
  policy_check<Policy, Exec>(policy, exec, options).run();
}

}  // namespace kvpolicy::testing
