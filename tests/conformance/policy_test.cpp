#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/history.hpp"
#include "conformance/rounds.hpp"

namespace kvpolicy_test {
namespace {

/// Where head sizes matter little: small ones.
cache_shape small_shape(random_source& random, std::int64_t most_tokens) {
  cache_shape shape = random_shape(random, most_tokens, random.between(1, 3));
  shape.head_dim = random.between(1, 20);
  shape.max_tokens = std::max<std::int64_t>(shape.max_tokens, 6);
  return shape;
}

template <class On, class Model>
void wander(std::uint64_t seed, int rounds) {
  random_source random(seed);
  std::int64_t steps = 0;
  for (int round = 0; round < rounds; ++round) {
    cache_shape const shape = small_shape(random, 150);
    std::string fault;
    On on(shape);
    on.run([&](auto& exec) {
      history<Model, std::remove_reference_t<decltype(exec)>> one(shape, random, exec);
      fault = one.run(12, steps);
    });
    INFO("round " << round << ": " << fault);
    REQUIRE(fault.empty());
  }
  REQUIRE(steps > rounds * 10);
}

TEMPLATE_TEST_CASE(
    "at any moment of any history a selection is well formed, exact, holds what is protected, and is what "
    "a fresh state would choose",
    "[policy]", full_model, quest_model, streaming_model, snapkv_model, chess_model, layered_quest_model, adakv_model,
    chunkkv_model, h2o_model, tova_model, snapkv_quest_model) {
  wander<on_host, TestType>(72, rounds_of(30));
#if defined(KVPOLICY_TEST_SIMD)
  wander<on_simd, TestType>(71, rounds_of(120));
  wander<on_team, TestType>(73, rounds_of(20));
#endif
#if defined(KVPOLICY_TEST_GPU_EMULATOR)
  wander<on_gpu_emulator, TestType>(76, rounds_of(6));
#endif
}

/// The same history's selections on two executors; scores are exact there, so the sets must be equal.
template <class Model, class Exec>
std::vector<lists_copy> selections_of(cache_shape const& shape, random_cache const& cache, typename Model::preset const& policy,
                                      std::vector<float> const& queries, std::int64_t prompt, Exec& exec) {
  std::vector<lists_copy> made;
  auto state = start(policy, shape);
  query_window const window{queries.data(), 1, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, 1};
  query_heads const heads{queries.data(), shape.q_heads, shape.head_dim, 1};
  for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(own_view{&cache, prompt}, {l}, {0, window}, exec);
  for (std::int64_t n = prompt + 1; n <= std::min(shape.max_tokens, prompt + 12); ++n) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      made.push_back(copy_of(state.choose(own_view{&cache, n}, {l}, {heads}, exec)));
    }
  }
  return made;
}

// Whole numbers as keys and queries: bounds and their scores are exact in fp32, ties are everywhere.
TEST_CASE("under ties, host_exec, simd_exec, a team and the kernels choose the same pages", "[policy]") {
  random_source random(74);
  for (int round = 0; round < 60; ++round) {
    cache_shape shape = small_shape(random, 200);
    shape.q_heads = shape.kv_heads * random.pick(std::array<std::int64_t, 4>{1, 2, 4, 8});  // means that are exact
    random_cache const cache(shape, random.pick(layouts), 16, random, content::tied);
    auto policy = quest_model::draw(shape, random);
    policy.tokens = static_cast<std::int32_t>(shape.max_tokens);
    policy.page = static_cast<std::int32_t>(random.between(1, 6));
    policy.sink_pages = 0;
    policy.recent_pages = 1;
    policy.tokens = static_cast<std::int32_t>(std::min(shape.max_tokens, policy.page * random.between(1, 9)));
    std::vector<float> queries(static_cast<std::size_t>(shape.q_heads * shape.head_dim));
    for (float& q : queries) q = static_cast<float>(random.between(-2, 2));
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    host_exec host;
    std::vector<lists_copy> const want = selections_of<quest_model>(shape, cache, policy, queries, prompt, host);
#if defined(KVPOLICY_TEST_SIMD)
    on_simd simd(shape);
    REQUIRE(selections_of<quest_model>(shape, cache, policy, queries, prompt, simd.exec) == want);
    on_team team(shape);
    std::vector<lists_copy> shared;
    team.run([&](auto& exec) { shared = selections_of<quest_model>(shape, cache, policy, queries, prompt, exec); });
    REQUIRE(shared == want);
#endif
#if defined(KVPOLICY_TEST_GPU_EMULATOR)
    if (round % 6 != 0) continue;
    emulated_exec kernels;
    REQUIRE(selections_of<quest_model>(shape, cache, policy, queries, prompt, kernels) == want);
#endif
  }
}

// What is removed before the first step must be forgotten as well: the page of token 20 may not keep the old keys' bounds.
TEMPLATE_TEST_CASE("a tail that is removed between the prompt and the first step is forgotten", "[policy]", quest_model,
                   chess_model) {
  random_source random(75);
  int differed = 0;
  for (int round = 0; round < 200; ++round) {
    cache_shape const shape{1, 1, 1, 4, 48, element_type::f32};
    random_cache cache(shape, layout::head_major, 8, random);
    typename TestType::preset policy{};
    if constexpr (std::is_same_v<TestType, quest_model>) policy = {.tokens = 16, .page = 4};
    else
      policy = {
          .fractions = {1, 1, .2f}, .units = {4, 2, 2}, .sink_pages = 0, .recent_pages = 1, .every = 1, .pre_rope = false};
    host_exec exec;
    std::vector<float> const queries = random.reals(4);
    query_heads const heads{queries.data(), 1, 4, 1};
    auto state = start(policy, shape);
    state.prefill(own_view{&cache, 40}, {0}, {}, exec);
    cache.fill(16, 48, random);  // the tail from 16 on is replaced, token by token
    state.cut(16);
    lists_copy got;
    for (std::int64_t n = 17; n <= 30; ++n) {
      got = copy_of(state.choose(own_view{&cache, n}, {0}, {heads}, exec));
      state.observe({.logits = {}, .entropy = 0.0f}, exec);
    }
    auto fresh = start(policy, shape);
    fresh.prefill(own_view{&cache, 29}, {0}, {}, exec);
    if (copy_of(fresh.choose(own_view{&cache, 30}, {0}, {heads}, exec)) != got) ++differed;
  }
  REQUIRE(differed == 0);
}

}  // namespace
}  // namespace kvpolicy_test
