#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "methods/naive_infllm.hpp"

namespace kvpolicy_test::methods {
namespace {

presets::infllm random_infllm(cache_shape const& shape, random_source& random) {
  while (true) {
    presets::infllm policy{.tokens = narrow(random.between(1, shape.max_tokens)),
                           .block = narrow(random.between(1, 9)),
                           .representatives = 1,
                           .local = narrow(random.between(1, 14)),
                           .sink_blocks = narrow(random.between(0, 2)),
                           .recent_blocks = narrow(random.between(1, 2)),
                           .layers = {.dense_first = narrow(random.between(0, 1)), .reuse = narrow(random.between(1, 2))}};
    policy.representatives = narrow(random.between(1, std::min(5, policy.block)));
    policy.pre_rope = random.one_in(2);
    if (random.one_in(4)) policy.ratio = .25 * static_cast<double>(random.between(0, 3));
    if (allowed(policy, shape) && (policy.ratio || policy.tokens <= shape.max_tokens)) return policy;  // else all is read
  }
}

TEST_CASE("infllm reads the blocks whose representatives the query wants, step by step", "[methods]") {
  in_worlds(1201, 500, 90, 3, [](world const& w, random_source& random, int round, tally& cases) {
    cache_shape const& shape = w.shape;
    presets::infllm const policy = random_infllm(shape, random);
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    host_exec exec;
    auto state = start(policy, shape);
    for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
    for (std::int64_t n = prompt + 1; n <= std::min(shape.max_tokens, prompt + 25); ++n) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        selection const kept = state.choose(w.view(n), {l}, w.step(l, n), exec);
        REQUIRE(kept.granularity() == scope::layer);
        verdict const v = judge_infllm(kept.of({0}), w, policy, l, n, prompt);
        INFO("round " << round << " prompt " << prompt << " tokens " << n << " layer " << l << " block " << policy.block
                      << " local " << policy.local << " representatives " << policy.representatives << " budget "
                      << policy.tokens << " ratio " << policy.ratio.value_or(-1) << " read " << text(tokens_of(kept.of({0}))));
        REQUIRE(v != verdict::different);
        cases.add(v);
      }
    }
  });
}

// Blocks of 2 tokens, one representative each, keys and queries of one number, a prompt of 6 tokens, local 2.
//   token      0   1 | 2   3 | 4   5 | 6 (generated, the current one)
//   key        1   2 | 3  -1 |-2   1 | 5
//   query      1  -1 | 1   1 |-1   1 | q
// Token 0: queries of 1 and 2, mean 0, times 1: 0.  Token 1: of 2 and 3: 1 x 2 = 2. Representative 1, key 2.
// Token 2: of 3 and 4: 0 x 3 = 0.   Token 3: of 4 and 5: 0 x -1 = 0. A tie: token 2, key 3.
// Token 4: of 5 alone, the prompt's last: 1 x -2 = -2.  Token 5: none, 0. Representative 5, key 1.
// Budget 4: the open block and one more. q = 1: scores 2, 3, 1: block 1. q = -1: -2, -3, -1: block 2.
TEST_CASE("infllm, worked by hand", "[methods]") {
  random_cache const cache = cache_with_keys({1, 2, 3, -1, -2, 1, 5}, 1202);
  std::vector<float> const queries{1, -1, 1, 1, -1, 1};
  presets::infllm const policy{
      .tokens = 4, .block = 2, .representatives = 1, .local = 2, .sink_blocks = 0, .recent_blocks = 1, .pre_rope = false};
  host_exec exec;
  for (float const q : {1.f, -1.f}) {
    auto state = start(policy, cache.shape());
    state.prefill(own_view{&cache, 6}, {0}, {.queries = {queries.data(), 6, 1, 1, 1, 1.f}}, exec);
    selection const kept = state.choose(own_view{&cache, 7}, {0}, {&q, 1, 1, 1.f}, exec);
    REQUIRE(tokens_of(kept.of({0})) == (q > 0 ? ints{2, 3, 6} : ints{4, 5, 6}));
  }
}

// The prompt ends with token 2, in the middle of block 1, which closes with token 3 and asks its own queries alone: token 2
// (key 3) is wanted by the query of token 3 (-1): -3; token 3 (key -1) by none: 0. It represents the block. With q = 1 at token
// 6 the blocks have 2 (token 1, as above), -1 and 1 (token 5, which none of its block asks for either: 0 against token 4's -2).
TEST_CASE("a block that closes while decoding asks its own queries alone, worked by hand", "[methods]") {
  random_cache const cache = cache_with_keys({1, 2, 3, -1, -2, 1, 5}, 1203);
  std::vector<float> const queries{1, -1, 1, -1, 1, 1, 1};
  presets::infllm const policy{
      .tokens = 6, .block = 2, .representatives = 1, .local = 2, .sink_blocks = 0, .recent_blocks = 1, .pre_rope = false};
  host_exec exec;
  auto state = start(policy, cache.shape());
  state.prefill(own_view{&cache, 3}, {0}, {.queries = {queries.data(), 3, 1, 1, 1, 1.f}}, exec);
  for (std::int64_t n = 4; n <= 6; ++n) {
    state.choose(own_view{&cache, n}, {0}, {queries.data() + n - 1, 1, 1, 1.f}, exec);
  }
  selection const kept = state.choose(own_view{&cache, 7}, {0}, {queries.data() + 6, 1, 1, 1.f}, exec);
  REQUIRE(tokens_of(kept.of({0})) == ints{0, 1, 4, 5, 6});
}

}  // namespace
}  // namespace kvpolicy_test::methods
