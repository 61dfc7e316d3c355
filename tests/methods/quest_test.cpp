#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "methods/naive_quest.hpp"

namespace kvpolicy_test::methods {
namespace {

presets::quest random_quest(cache_shape const& shape, random_source& random) {
  presets::quest policy;
  do {
    policy = {.tokens = narrow(random.between(1, shape.max_tokens)),
              .page = narrow(random.between(1, 9)),
              .sink_pages = narrow(random.between(0, 2)),
              .recent_pages = narrow(random.between(1, 3)),
              .metadata = pools::bounds::kind::range,
              .group = random.one_in(2) ? group_merge::mean : group_merge::maximum,
              .layers = {.dense_first = narrow(random.between(0, 2)), .reuse = narrow(random.between(1, 3))}};
    if (random.one_in(4)) policy.ratio = .25 * static_cast<double>(random.between(0, 3));
    if (shape.type == element_type::f32 && random.one_in(2)) policy.metadata = pools::bounds::kind::mean_deviation;
  } while (!allowed(policy, shape) || (!policy.ratio && policy.tokens > shape.max_tokens));  // else all is read
  return policy;
}

/// `kind` tied: whole numbers, where nothing may be excused.
tally run_quest(std::uint64_t seed, std::int64_t rounds, content kind) {
  random_source random(seed);
  tally cases;
  for (std::int64_t round = 0; round < rounds; ++round) {
    cache_shape shape = small_shape(random, 90, 4);
    if (kind == content::tied) shape.q_heads = shape.kv_heads * (1 << random.between(0, 2));  // means stay exact
    world const w(shape, random, kind);
    presets::quest policy = random_quest(shape, random);
    if (kind == content::tied) policy.metadata = pools::bounds::kind::range;
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    std::int64_t const piece = random.between(0, prompt);  // half of the prompts come in two
    host_exec exec;
    auto state = start(policy, shape);
    if (piece > 0 && random.one_in(2)) {
      for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(piece), {l}, {}, exec);
      for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(prompt), {l}, {.first = piece}, exec);
    } else {
      for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(prompt), {l}, {}, exec);
    }
    for (std::int64_t n = prompt + 1; n <= std::min(shape.max_tokens, prompt + 8); ++n) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        selection const kept = state.choose(w.view(n), {l}, w.step(l, n), exec);
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          verdict const v = judge_quest(kept.of({h}), w, policy, l, h, n);
          INFO("round " << round << " tokens " << n << " layer " << l << " head " << h << " page " << policy.page << " budget "
                        << policy.tokens << " ratio " << policy.ratio.value_or(-1) << " read "
                        << text(tokens_of(kept.of({h}))));
          REQUIRE(v != verdict::different);
          cases.add(v);
        }
      }
      state.observe({}, exec);
    }
  }
  return cases;
}

TEST_CASE("quest reads what its equations say, step by step", "[methods]") { run_quest(1101, 500, content::plain).require(); }

TEST_CASE("quest breaks ties of whole numbers by the smaller page, and nothing is excused", "[methods]") {
  tally const cases = run_quest(1102, 500, content::tied);
  cases.require();
  REQUIRE(cases.excused == 0);
}

// Pages of 2 tokens, keys (x, y); the query is (1, -2), budget 4 tokens: the open page and one more.
//   page 0: (1, 0) (3, 1)   max x 3, min y 0    3 + 0  = 3
//   page 1: (0, -2) (-4, 5) max x 0, min y -2   0 + 4  = 4     the best, though no single key of it has more than 4
//   page 2: (2, 0) (2, -.5) max x 2, min y -.5  2 + 1  = 3
//   page 3: (9, 9)          open, read in any case
// Mean -/+ deviation: page 0: x 2 + 1, y .5 - .5: 3; page 1: x -2 + 2, y 1.5 - 3.5: 4; page 2: x 2, y -.25 - .25: 3.
TEST_CASE("quest, worked by hand", "[methods]") {
  random_source random(1103);
  cache_shape const shape{1, 1, 1, 2, 7, element_type::f32};
  random_cache cache(shape, layout::head_major, 4, random);
  std::vector<std::pair<float, float>> const keys{{1, 0}, {3, 1}, {0, -2}, {-4, 5}, {2, 0}, {2, -.5f}, {9, 9}};
  for (std::int64_t t = 0; t < 7; ++t) {
    cache.set_key(0, 0, t, 0, at(keys, t).first);
    cache.set_key(0, 0, t, 1, at(keys, t).second);
  }
  std::vector<float> const query{1, -2};
  host_exec exec;
  for (auto const metadata : {pools::bounds::kind::range, pools::bounds::kind::mean_deviation}) {
    presets::quest const policy{.tokens = 4, .page = 2, .sink_pages = 0, .metadata = metadata, .group = group_merge::mean};
    auto state = start(policy, shape);
    state.prefill(own_view{&cache, 6}, {0}, {}, exec);
    selection const kept = state.choose(own_view{&cache, 7}, {0}, {query.data(), 1, 2, 1.f}, exec);
    REQUIRE(tokens_of(kept.of({0})) == ints{2, 3, 6});
  }
}

}  // namespace
}  // namespace kvpolicy_test::methods
