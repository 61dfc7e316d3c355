#include "kvpolicy/presets/snapkv.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/history.hpp"
#include "conformance/naive.hpp"

namespace kvpolicy_test {
namespace {

/// Relative: scores are positive, and so is every term of them.
bool close_call(std::vector<double> const& scores, std::int64_t k) {
  if (k <= 0 || k >= std::ssize(scores)) return false;
  std::vector<double> sorted = scores;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double const threshold = sorted[static_cast<std::size_t>(k - 1)];
  return naive::close_call(scores, k, 1e-4 * threshold);
}

TEMPLATE_TEST_CASE("snapkv keeps what the prompt's last queries attend to, then all that is generated", "[presets]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(131);
  int compared = 0;
  for (int round = 0; round < 450; ++round) {
    cache_shape shape = random_shape(random, 100);
    shape.head_dim = random.between(1, 16);
    shape.max_tokens += 8;
    random_cache const cache = random_cache_of(shape, random);
    auto const policy = snapkv_model::draw(shape, random);
    try {
      check(policy, shape);
    } catch (invalid_value const&) {
      continue;
    }
    std::int64_t const n = random.between(1, shape.max_tokens - 5);
    // More queries than the window are handed over at times; the last of them count.
    std::int64_t const given = std::min<std::int64_t>(n, policy.window + random.between(0, 3));
    std::int64_t const w = std::min<std::int64_t>(n, policy.window);
    std::int64_t const width = shape.q_heads * shape.head_dim;
    std::vector<float> const queries = random.reals(given * width, 2);
    std::vector<float> const last(queries.end() - w * width, queries.end());
    lists_copy lists;
    TestType on(shape);
    on.run([&](auto& exec) {
      auto state = start(policy, shape);
      query_window const window{queries.data(), given, shape.q_heads, width, shape.head_dim, .5f};
      state.prefill(own_view{&cache, n}, {0}, {0, window}, exec);
      for (std::int64_t t = n + 1; t <= n + 5; ++t) lists = copy_of(state.choose(own_view{&cache, t}, {0}, {}, exec));
    });
    std::int64_t const recent = n - w;
    std::int64_t const sinks = std::min<std::int64_t>(policy.sinks, recent);
    std::int64_t const k = std::max<std::int64_t>(0, policy.tokens - sinks - w);
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      std::vector<double> scores = naive::window_attention(cache, last, h, n, w, .5, policy.smooth);
      scores.erase(scores.begin(), scores.begin() + sinks);
      if (close_call(scores, k)) continue;
      std::vector<bool> want(static_cast<std::size_t>(n + 5), false);
      for (std::int64_t t = 0; t < n + 5; ++t) want[static_cast<std::size_t>(t)] = t < sinks || t >= recent;
      for (std::int32_t const t : naive::top_k(scores, k)) want[static_cast<std::size_t>(sinks + t)] = true;
      bool same = true;
      for (std::int64_t t = 0; t < n + 5; ++t) {
        same = same && reads(lists[static_cast<std::size_t>(h)], t) == want[static_cast<std::size_t>(t)];
      }
      INFO("round " << round << " head " << h << " tokens " << n << " window " << w << " budget " << policy.tokens);
      REQUIRE(same);
      ++compared;
    }
  }
  REQUIRE(compared >= 500);
}

TEST_CASE("snapkv says so when no queries were observed", "[presets]") {
  random_source random(132);
  cache_shape const shape{1, 2, 2, 4, 64, element_type::f32};
  random_cache const cache(shape, layout::head_major, 4, random);
  presets::snapkv const policy{.tokens = 8, .window = 4, .after = 0};
  host_exec exec;
  auto state = start(policy, shape);
  REQUIRE_THROWS_AS(state.prefill(own_view{&cache, 40}, {0}, {}, exec), unsupported);
}

TEST_CASE("snapkv's paper setting is window 64 and an average over 5", "[presets]") {
  constexpr presets::snapkv paper = presets::snapkv::paper();
  STATIC_REQUIRE(paper.window == 64);
  STATIC_REQUIRE(paper.smooth.how == smoothing::kind::average);
  STATIC_REQUIRE(paper.smooth.width == 5);
}

}  // namespace
}  // namespace kvpolicy_test
