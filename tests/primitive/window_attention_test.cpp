#include "kvpolicy/primitive/window_attention.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"

namespace kvpolicy_test {
namespace {

// Every score is a mean of probabilities: relative to the float64 result, 1e-4 is allowed.
TEMPLATE_TEST_CASE("window_attention is softmax, mean over the window, smoothing, mean over the group", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(21);
  for (int round = 0; round < 60; ++round) {
    cache_shape const shape = random_shape(random, 160);
    random_cache const cache = random_cache_of(shape, random);
    std::int64_t const n = shape.max_tokens;
    std::int64_t const w = random.one_in(8) ? n : std::min(n, random.between(1, 12));
    smoothing const smooth{random.pick(std::array{smoothing::kind::none, smoothing::kind::average, smoothing::kind::maximum}),
                           2 * random.between(0, 20) + 1};
    float const scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
    std::vector<float> const queries = random.reals(w * shape.q_heads * shape.head_dim, 2);
    std::int64_t const stride = n - w + 1;
    std::vector<float> scores(static_cast<std::size_t>(shape.kv_heads * stride), 7.0f);
    TestType on(shape);
    on.run([&](auto& exec) {
      window_attention({queries.data(), w, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, scale},
                       cache.keys(0, n), smooth, table<float>{scores.data(), shape.kv_heads, n - w, stride}, exec);
    });
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      std::vector<double> const want = naive::window_attention(cache, queries, 0, h, n, w, scale, smooth);
      for (std::int64_t t = 0; t < n - w; ++t) {
        double const right = want[static_cast<std::size_t>(t)];
        INFO("round " << round << " head " << h << " token " << t << " of " << n << " window " << w);
        REQUIRE(std::abs(scores[static_cast<std::size_t>(h * stride + t)] - right) <= 1e-4 * right);
      }
      REQUIRE(scores[static_cast<std::size_t>(h * stride + n - w)] == 7.0f);
    }
  }
}

// Four tokens, one query, all keys equal: attention is 1/4 each. Average over 3 counts the padding zero: 2/12, 3/12, 2/12.
TEMPLATE_TEST_CASE("averaging counts the zeros beyond both ends, the maximum does not", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(22);
  cache_shape const shape{1, 1, 1, 4, 4, element_type::f32};
  random_cache const cache(shape, layout::head_major, 4, random, content::equal);
  std::vector<float> const query(4, 1.0f);
  std::vector<float> scores(3);
  TestType on(shape);
  auto const with = [&](smoothing smooth) {
    on.run([&](auto& exec) {
      window_attention({query.data(), 1, 1, 4, 4, 1}, cache.keys(0, 4), smooth, table<float>{scores.data(), 1, 3, 3}, exec);
    });
  };
  with({smoothing::kind::average, 3});
  REQUIRE(std::abs(scores[0] - 2 / 12.0) < 1e-6);
  REQUIRE(std::abs(scores[1] - 3 / 12.0) < 1e-6);
  REQUIRE(std::abs(scores[2] - 2 / 12.0) < 1e-6);
  with({smoothing::kind::maximum, 31});
  for (float const score : scores) REQUIRE(std::abs(score - .25) < 1e-6);
}

}  // namespace
}  // namespace kvpolicy_test
