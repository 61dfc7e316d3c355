#include "kvpolicy/any_policy.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "conformance/history.hpp"

namespace kvpolicy_test {
namespace {

using any = any_policy<own_view, host_exec>;
using rule = any_rule<own_view, host_exec>;

/// Every list of a request with a further piece, steps, a removed tail and observations.
template <class Policy>
std::vector<lists_copy> lists_of(Policy const& policy, random_cache const& cache, std::uint64_t seed) {
  random_source random(seed);
  cache_shape const shape = cache.shape();
  std::vector<lists_copy> made;
  host_exec exec;
  auto state = start(policy, shape);
  auto const prompt = [&](std::int64_t first, std::int64_t tokens) {
    std::int64_t const count = std::max<std::int64_t>(9, std::min(observation_queries(policy), tokens - first));
    std::vector<float> const queries = random.reals(count * shape.q_heads * shape.head_dim);
    query_window const window{queries.data(), count, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, .5f};
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      state.prefill(own_view{&cache, tokens}, {l}, {.first = first, .queries = window}, exec);
    }
  };
  auto const steps = [&](std::int64_t first, std::int64_t last) {
    state.cut(first - 1);
    for (std::int64_t n = first; n <= last; ++n) {
      std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim);
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        step_signals const signals{{queries.data(), shape.q_heads, shape.head_dim, .5f}, 3};
        made.push_back(copy_of(state.choose(own_view{&cache, n}, {l}, signals, exec)));
        made.push_back(copy_of(state.retained({l})));
      }
      std::vector<float> const logits = random.reals(7, 3);
      state.observe({logits}, exec);
    }
  };
  prompt(0, 60);
  steps(61, 75);
  prompt(75, 90);
  steps(91, 110);
  steps(101, 115);
  steps(41, 50);
  return made;
}

template <class Retain, class Retrieve>
void check_same(Retain const& retain, Retrieve const& retrieve) {
  random_source random(201);
  random_cache const cache({3, 6, 2, 8, 120, element_type::f16}, layout::paged_hnd, 16, random);
  policy const plain{retain, retrieve};
  any const erased = erase<own_view, host_exec>(plain);
  REQUIRE(needs_of(erased) == needs_of(plain));
  REQUIRE(observation_queries(erased) == observation_queries(plain));
  REQUIRE(requirements_of(erased.retain).granularity == Retain::granularity);
  REQUIRE(requirements_of(erased.retrieve).granularity == Retrieve::granularity);
  std::vector<lists_copy> const want = lists_of(plain, cache, 202);
  REQUIRE(want.size() == 2 * 3 * 60);
  REQUIRE(lists_of(erased, cache, 202) == want);
}

TEST_CASE("a rule that is chosen at run time does what it does by itself, with and without another one", "[any_policy]") {
  auto const snapkv = presets::snapkv{.tokens = 40, .after = 0}.parts().retain;
  auto const streaming = presets::streaming_llm{.tokens = 40}.parts().retain;
  auto const h2o = presets::h2o{.tokens = 30, .layers = {1, 2}}.parts().retain;
  auto const tova = presets::tova{.tokens = 30}.parts().retain;
  auto const quest = presets::quest{.tokens = 16, .page = 4}.parts().retrieve;
  auto const chess =
      presets::chess{
          .fractions = {.5f, .5f, .2f}, .units = {4, 2, 2}, .recent_pages = 2, .entropy = 1.2f, .every = 5, .pre_rope = false}
          .parts()
          .retrieve;
  check_same(keep_all{}, keep_all{});
  check_same(snapkv, keep_all{});
  check_same(streaming, keep_all{});
  check_same(h2o, keep_all{});
  check_same(tova, keep_all{});
  check_same(keep_all{}, quest);
  check_same(keep_all{}, chess);
  check_same(snapkv, quest);
  check_same(h2o, quest);
  check_same(tova, quest);
  check_same(streaming, quest);
  check_same(streaming, chess);
}

TEST_CASE("what a rule refuses, and what a pair does, is refused of those chosen at run time", "[any_policy]") {
  cache_shape const shape{2, 4, 2, 8, 300, element_type::f16};
  auto const snapkv = presets::snapkv{.tokens = 64, .after = 0}.parts().retain;
  auto const chess = presets::chess{.fractions = {.5f, .5f, .2f}, .units = {8, 2, 2}, .recent_pages = 1}.parts().retrieve;
  auto const quest = [](std::int32_t tokens, std::int32_t reuse) {
    return presets::quest{.tokens = tokens, .layers = {.reuse = reuse}}.parts().retrieve;
  };
  auto const pair = [](auto const& retain, auto const& retrieve) {
    return any{rule::retain(retain), rule::retrieve(retrieve)};
  };
  REQUIRE_NOTHROW(check(any{}, shape));
  REQUIRE_NOTHROW(check(pair(snapkv, quest(64, 1)), shape));
  REQUIRE_THROWS_AS(check(pair(snapkv, chess), shape), unsupported);
  REQUIRE_THROWS_AS(check(pair(snapkv, quest(64, 2)), shape), unsupported);
  REQUIRE_NOTHROW(check(pair(keep_all{}, quest(64, 2)), shape));
  REQUIRE_THROWS_AS(check(pair(snapkv, quest(0, 1)), shape), invalid_value);
  REQUIRE_THROWS_AS(check(any{rule::retrieve(quest(64, 1)), rule::retain(keep_all{})}, shape), invalid_value);
  REQUIRE_THROWS_AS(check(any{rule::retain(snapkv), rule::retain(snapkv)}, shape), invalid_value);
  REQUIRE_THROWS_AS(start(pair(presets::snapkv{.tokens = 4, .after = 0}.parts().retain, keep_all{}), shape), invalid_value);
}

TEST_CASE("what a rule that is chosen at run time may need is everything; what it does need is its own", "[any_policy]") {
  STATIC_REQUIRE(any::needs == all_signals);
  STATIC_REQUIRE(any::granularity == scope::head);
  REQUIRE(needs_of(any{}) == signals::none);
  REQUIRE(needs_of(erase<own_view, host_exec>(presets::quest{})) == (signals::keys | signals::queries));
}

}  // namespace
}  // namespace kvpolicy_test
