#include "kvpolicy/scorers/redundancy.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/testing/random_cache.hpp"

namespace kvpolicy {
namespace {

constexpr cache_shape shape{
    .layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 8, .max_tokens = 30, .type = element_type::f32};

TEST_CASE("the redundancy of a list's tokens sums to 1, and an empty list has none") {
  testing::random_source random(3);
  testing::random_cache const cache(shape, random, testing::content::normal);
  auto const view = cache.view(20);
  scorers::redundancy const score{.alike = .2f};
  auto memory = score.start(shape);
  struct none {
  } summaries;
  score_input const input{view, {0}, {0, 2}, 20, 20, summaries, memory, {}, nullptr};
  std::vector<range_list> const lists{{{2, 9, reason::open}, {12, 20, reason::open}}, {}};
  std::vector<float> out(60, 7.0f);
  host_exec exec;
  score.score_kept(input, std::span<range_list const>(lists), table<float>{out.data(), 2, 15, 30}, exec);
  float sum = 0;
  for (std::size_t i = 0; i < 15; ++i) {
    CHECK(out[i] > 0);
    sum += out[i];
  }
  CHECK(std::abs(sum - 1) < 1e-5f);
  CHECK(out[30] == 7.0f);
}

TEST_CASE("redundancy refuses a cosine below 0") {
  CHECK_THROWS_AS(scorers::redundancy{.alike = -.1f}.start(shape), invalid_value);
  CHECK_NOTHROW(scorers::redundancy{.alike = 0}.start(shape));
}

}  // namespace
}  // namespace kvpolicy
