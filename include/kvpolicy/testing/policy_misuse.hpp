// What check_policy() asks of every misuse of a policy's verbs: that it is refused.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kvpolicy/policy.hpp"
#include "kvpolicy/testing/random_cache.hpp"

namespace kvpolicy::testing {

/// The cache and the sequence on which a policy is checked.
struct policy_options {
  cache_shape shape{.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .max_tokens = 160, .type = element_type::f32};
  std::int64_t prompt = 100;  ///< tokens; `prompt + steps` is less than `shape.max_tokens`
  int steps = 24;             ///< after the prompt
  std::uint64_t seed = 1;
};

/// Calls a policy's verbs as they may not be called; the part of check_policy() that does.
template <policy_like Policy, executor Exec>
class policy_misuse {
 protected:
  policy_misuse(Policy const& policy, Exec& exec, policy_options const& options)
      : policy_(policy),
        exec_(exec),
        options_(options),
        shape_(options.shape),
        needs_(needs_of(policy)),
        random_(options.seed),
        inputs_(shape_, random_) {}

  void misuse_of_shapes() {
    for (cache_shape const& bad :
         {cache_shape{0, 4, 2, 16, 256}, cache_shape{3, 5, 2, 16, 256}, cache_shape{3, 4, 2, 16, 0},
          cache_shape{3, 4, 2, 16, -5}, cache_shape{3, 4, 2, 16, std::int64_t{1} << 40}, cache_shape{1, 4, 2, 16, INT32_MAX},
          cache_shape{3, 4, 0, 16, 256}, cache_shape{3, 4, 2, 0, 256}}) {
      refused("start() on " + name_of(bad, bad.max_tokens), true, [&] { static_cast<void>(start(policy_, bad)); });
    }
  }

  template <class Request>
  void misuse_of_prompts(Request& state, random_cache const& cache) {
    std::int64_t const n = options_.prompt;
    auto const prefill = [&](std::string const& what, auto const& view, std::int64_t layer, prompt_signals const& prompt,
                             bool must = true) {
      refused("prefill() " + what, must, [&] { state.prefill(view, {layer}, prompt, exec_); });
    };
    prefill("of layer -1", cache.view(n), -1, inputs_.prompt(0, n));
    prefill("of a layer too many", cache.view(n), shape_.layers, inputs_.prompt(0, n));
    prefill("that begins with layer 1", cache.view(n), 1, inputs_.prompt(0, n));
    prefill("with a gap", cache.view(n), 0, inputs_.prompt(n / 2, n));
    prefill("of no tokens", cache.view(0), 0, {});
    prefill("of more tokens than there may be", cache.view(shape_.max_tokens + 1), 0, inputs_.prompt(0, shape_.max_tokens));
    prompt_signals behind = inputs_.prompt(0, n);
    behind.first = n + 1;
    prefill("that begins behind its end", cache.view(n), 0, behind);
    for (auto const& [what, view] : other_views(cache, n)) prefill("of " + what, view, 0, inputs_.prompt(0, n));
    for (auto const& [what, view] : unreadable_views(cache, n))
      prefill("of " + what, view, 0, inputs_.prompt(0, n), contains(needs_, signals::keys));
    prompt_signals few = inputs_.prompt(0, n);
    few.queries = {};
    prefill("without the prompt's queries", cache.view(n), 0, few, contains(needs_, signals::observation_queries));
    few = inputs_.prompt(0, n);
    few.queries.heads += 1;
    prefill("with queries of other heads", cache.view(n), 0, few, contains(needs_, signals::observation_queries));
    few = inputs_.prompt(0, n);
    few.queries = few.queries.last(std::min(observation_queries(policy_), n) - 1);
    prefill("with too few queries", cache.view(n), 0, few, contains(needs_, signals::observation_queries));
    few = inputs_.prompt(0, n);
    few.queries.scale = unset_scale;
    prefill("with queries without a scale", cache.view(n), 0, few, contains(needs_, signals::observation_queries));
    few = inputs_.prompt(0, n);
    few.rope = {};
    prefill("without the rotary embedding", cache.view(n), 0, few, contains(needs_, signals::rotation));
    few = inputs_.prompt(0, n);
    few.token_ids = {};
    prefill("without token ids", cache.view(n), 0, few, contains(needs_, signals::token_ids));
    few = inputs_.prompt(0, n);
    few.queries.head_stride = 0;
    prefill("with queries whose heads lie in one place", cache.view(n), 0, few, contains(needs_, signals::observation_queries));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
    ids.back() = -1;
    few = inputs_.prompt(0, n);
    few.token_ids = ids;
    prefill("with a negative token id", cache.view(n), 0, few, contains(needs_, signals::token_ids));
    std::vector<float> const frequencies(static_cast<std::size_t>(shape_.head_dim / 2),
                                         std::numeric_limits<float>::quiet_NaN());
    few = inputs_.prompt(0, n);
    few.rope.inverse_frequency = frequencies.data();
    few.rope.pairs = std::ssize(frequencies);
    prefill("with frequencies that are no numbers", cache.view(n), 0, few, contains(needs_, signals::rotation));
    few = inputs_.prompt(0, n);
    few.rope.pairs = 0;
    prefill("with frequencies of no pairs", cache.view(n), 0, few, contains(needs_, signals::rotation));
    std::vector<range_list> const earlier{{{0, static_cast<std::int32_t>(n - 1), reason::open}}};
    few = inputs_.prompt(0, n);
    few.resident = earlier;
    prefill("with resident lists that lack a new token", cache.view(n), 0, few);
    refused("kept() of a layer that has not chosen", true, [&] { static_cast<void>(state.kept({0})); });
    refused("retained() of a layer too many", true, [&] { static_cast<void>(state.retained({shape_.layers})); });
    refused("observe() before any step", true, [&] { state.observe(inputs_.outcome(1), exec_); });
    refused("choose() that jumps over a prompt", true, [&] { state.choose(cache.view(n), {0}, inputs_.step(n), exec_); });
    state.prefill(cache.view(n), {0}, inputs_.prompt(0, n), exec_);
    prefill("of a layer with other tokens", cache.view(n - 1), 1, inputs_.prompt(0, n - 1));
    prefill("that leaves a layer out", cache.view(n), 2, inputs_.prompt(0, n));
    refused("choose() for a layer whose prompt is not there", true,
            [&] { state.choose(cache.view(n + 1), {1}, inputs_.step(n + 1), exec_); });
  }

  template <class Request>
  void misuse_of_repetitions(Request& state, random_cache const& cache) {
    std::int64_t const n = options_.prompt;
    std::int64_t const end = n + options_.steps;
    auto const prefill = [&](std::string const& what, prompt_signals const& prompt) {
      refused("a repetition " + what, true, [&] { state.prefill(cache.view(end), {0}, prompt, exec_); });
    };
    prefill("of tokens that are not there", inputs_.repetition({0, n + 1}, n, end));
    prefill("that ends before it begins", inputs_.repetition({9, 4}, n, end));
    prompt_signals few = inputs_.repetition({0, n}, n, end);
    few.queries = few.queries.last(1);
    prefill("without some of its queries", few);
    few.queries = {};
    prefill("without queries", few);
  }

  template <class Request>
  void misuse_of_steps(Request& state, random_cache const& cache, std::int64_t n) {
    auto const choose = [&](std::string const& what, auto const& view, std::int64_t layer, step_signals const& step,
                            bool must = true) {
      refused("choose() " + what, must, [&] { state.choose(view, {layer}, step, exec_); });
    };
    choose("for layer -1", cache.view(n), -1, inputs_.step(n));
    choose("for a layer too many", cache.view(n), shape_.layers, inputs_.step(n));
    choose("that begins with layer 2", cache.view(n), 2, inputs_.step(n));
    choose("that jumps over a token", cache.view(n + 1), 0, inputs_.step(n + 1));
    choose("on no tokens", cache.view(0), 0, inputs_.step(n));
    choose("on as many tokens as are known", cache.view(n - 1), 0, inputs_.step(n - 1));
    choose("on fewer tokens than are known", cache.view(n - 2), 0, inputs_.step(n - 2));
    for (auto const& [what, view] : other_views(cache, n)) choose("on " + what, view, 0, inputs_.step(n));
    for (auto const& [what, view] : unreadable_views(cache, n))
      choose("on " + what, view, 0, inputs_.step(n), contains(needs_, signals::keys));
    step_signals few = inputs_.step(n);
    few.queries = {};
    choose("without queries", cache.view(n), 0, few, contains(needs_, signals::queries));
    few = inputs_.step(n);
    few.queries.heads = 1;
    choose("with queries of other heads", cache.view(n), 0, few, contains(needs_, signals::queries));
    for (float const scale : {unset_scale, 0.0f, -1.0f, std::numeric_limits<float>::infinity()}) {
      few = inputs_.step(n);
      few.queries.scale = scale;
      choose("with a scale of " + std::to_string(scale), cache.view(n), 0, few, contains(needs_, signals::queries));
    }
    few = inputs_.step(n);
    few.queries.head_stride = shape_.head_dim - 1;
    choose("with queries that overlap", cache.view(n), 0, few, contains(needs_, signals::queries));
    few = inputs_.step(n);
    few.token_id = -1;
    choose("without the token's id", cache.view(n), 0, few, contains(needs_, signals::token_ids));
  }

  /// Views of other caches than the one that the request is for.
  static std::vector<std::pair<std::string, strided_view<>>> other_views(random_cache const& cache, std::int64_t n) {
    std::vector<std::pair<std::string, strided_view<>>> made(4, {"", cache.view(n)});
    made[0].first = "a cache with more KV heads";
    made[0].second.cache.kv_heads *= 2;
    made[0].second.cache.q_heads *= 2;
    made[1].first = "a cache with longer rows";
    made[1].second.cache.head_dim *= 2;
    made[2].first = "a cache with fewer layers";
    made[2].second.cache.layers -= 1;
    made[3].first = "a cache of another type";
    made[3].second.cache.type = element_type::f16;
    return made;
  }

  /// Views whose strides lead from a row into itself, or into another.
  static std::vector<std::pair<std::string, strided_view<>>> unreadable_views(random_cache const& cache, std::int64_t n) {
    std::vector<std::pair<std::string, strided_view<>>> made(3, {"rows without strides", cache.view(n)});
    made[0].second.key_strides = {};
    made[1].first = "rows whose strides are in elements";
    byte_strides& of = made[1].second.key_strides;
    of = {.layer = of.layer / 4, .head = of.head / 4, .token = of.token / 4, .dim = of.dim / 4};
    made[2].first = "heads whose rows are each other's";
    made[2].second.key_strides.head = made[2].second.key_strides.token;
    return made;
  }

  template <class Call>
  void refused(std::string const& what, bool must, Call call) {
    if (!must) return;
    try {
      call();
    } catch (error const&) {
      return;
    }
    where_ = text_of(shape_);
    fail(what + " is not refused");
  }
  [[noreturn]] void fail(std::string const& what) const { throw broken_promise("a policy: " + what + " (" + where_ + ")"); }

  Policy policy_;
  Exec& exec_;
  policy_options options_;
  cache_shape shape_;
  signals needs_;
  random_source random_;
  random_signals inputs_;
  std::string where_;
};

}  // namespace kvpolicy::testing
