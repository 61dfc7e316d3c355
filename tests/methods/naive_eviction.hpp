// H2O, TOVA and StreamingLLM once more, from their rules: what is there for each KV head, and what a step leaves of it.
#pragma once

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/presets/duoattention.hpp"
#include "kvpolicy/presets/h2o.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "kvpolicy/presets/tova.hpp"
#include "methods/naive_choice.hpp"

namespace kvpolicy_test::methods {

/// How many tokens of n are kept.
inline std::int64_t kept_of(std::int64_t tokens, std::optional<double> ratio, std::int64_t n) {
  if (!ratio) return std::min(tokens, n);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(n) * (1 - *ratio)));
}

/// Every token's attention so far, and how many queries saw it: one KV head.
struct accumulated {
  reals sums;
  reals seen;

  explicit accumulated(std::int64_t tokens) : sums(filled(tokens, 0.0)), seen(filled(tokens, 0.0)) {}

  void add(world const& w, std::int64_t l, std::int64_t h, std::int64_t query, ints const& there) {
    reals const weights = w.group_attention(l, query, h, there);
    for (std::int64_t i = 0; i < size_of(there); ++i) {
      at(sums, at(there, i)) += at(weights, i);
      at(seen, at(there, i)) += 1;
    }
  }
  reals of(ints const& tokens, bool mean) const {
    reals made;
    for (std::int64_t const t : tokens) made.push_back(mean ? at(sums, t) / std::max(1.0, at(seen, t)) : at(sums, t));
    return made;
  }
};

/// Judges what is left of `there` when `keep` tokens stay, the last `recent` of them in any case, and beside them the first
/// `pinned`.
inline verdict judge_left(ints const& got, ints const& there, std::int64_t keep, std::int64_t recent, reals const& scores,
                          std::int64_t pinned = 0) {
  std::int64_t const others = std::max(pinned, size_of(there) - recent);
  ints forced(there.begin(), there.begin() + pinned);
  forced.insert(forced.end(), there.begin() + others, there.end());
  if (!ascends(got) || !without(forced, got).empty()) return verdict::different;
  ints const names(there.begin() + pinned, there.begin() + others);
  reals const rest(scores.begin() + pinned, scores.begin() + others);
  std::int64_t const room = std::max<std::int64_t>(0, keep + pinned - size_of(forced));
  return judge(without(got, forced), names, rest, room, 1e-5 * largest_size(rest));
}

/// Also counts what left something out, so that a test evicts often.
struct eviction_tally : tally {
  std::int64_t evictions = 0;

  void add(verdict v, ints const& left, ints const& from) {
    REQUIRE(v != verdict::different);
    tally::add(v);
    evictions += size_of(left) < size_of(from) ? 1 : 0;
  }
  void require() const {
    REQUIRE(evictions > 500);
    tally::require();
  }
};

/// Follows a retain that evicts every so many steps. Calls look(layer, head, left, from, tokens, decoding) for what a prompt's
/// end left of all, and for what each eviction left of what was there: that shows at the step behind it.
template <class Request, class Look>
void follow_evictions(Request& state, world const& w, std::int64_t prompt, std::int64_t every, Look look) {
  cache_shape const& shape = w.shape;
  host_exec exec;
  for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
  std::vector<ints> there;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      there.push_back(tokens_of(state.retained({l}).of({h})));
      look(l, h, there.back(), range(0, prompt), prompt, false);
    }
  }
  for (std::int64_t n = prompt + 1; n <= std::min(shape.max_tokens, prompt + 20); ++n) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      selection const kept = state.choose(w.view(n), {l}, w.step(l, n), exec);
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        ints const got = tokens_of(kept.of({h}));
        ints& list = at(there, l * shape.kv_heads + h);
        REQUIRE(got.back() == n - 1);
        ints const left = without(got, {n - 1});
        if (n > prompt + 1 && (n - 1 - prompt) % every == 0) look(l, h, left, list, n - 1, true);
        else REQUIRE(left == list);
        list = got;
      }
    }
  }
}

}  // namespace kvpolicy_test::methods
