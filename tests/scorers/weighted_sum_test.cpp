#include "kvpolicy/scorers/weighted_sum.hpp"

#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/scorers/last_attention.hpp"
#include "kvpolicy/scorers/recency.hpp"
#include "kvpolicy/scorers/recent_attention.hpp"
#include "kvpolicy/scorers/redundancy.hpp"
#include "kvpolicy/testing/random_cache.hpp"

namespace kvpolicy {
namespace {

using both = scorers::weighted_sum<scorers::recency_of_heads, scorers::redundancy>;
using hearing = scorers::weighted_sum<scorers::redundancy, scorers::recent_attention>;
static_assert(evicting_scorer<both> && evicting_scorer<hearing>);
static_assert(memory_of<hearing>::hears_prompts && memory_of<hearing>::hears_steps && !memory_of<both>::hears_prompts);
static_assert(contains(hearing::needs, signals::observation_queries | signals::queries));

TEST_CASE("weighted_sum adds what its scorers say, each times its weight") {
  constexpr cache_shape shape{
      .layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 8, .max_tokens = 30, .type = element_type::f32};
  testing::random_source random(4);
  testing::random_cache const cache(shape, random, testing::content::normal);
  auto const view = cache.view(12);
  struct none {
  } summaries;
  host_exec exec;
  std::vector<range_list> const lists{{{0, 4, reason::open}}, {{1, 12, reason::open}}};
  auto const scores_of = [&](auto const& score) {
    auto memory = score.start(shape);
    score_input const input{view, {0}, {0, 2}, 12, 12, summaries, memory, {}, nullptr};
    std::vector<float> out(60, 7.0f);
    score.score_kept(input, std::span<range_list const>(lists), table<float>{out.data(), 2, 30, 30}, exec);
    return out;
  };
  std::vector<float> const first = scores_of(scorers::recency_of_heads{});
  std::vector<float> const second = scores_of(scorers::redundancy{});
  std::vector<float> const sum = scores_of(both{.of_first = .25f, .of_second = -2});
  for (std::size_t i : {0, 1, 2, 3, 30, 31, 35, 40}) CHECK(sum[i] == .25f * first[i] + -2.0f * second[i]);
}

TEST_CASE("weighted_sum needs as many of a prompt's queries as the scorer that needs more") {
  using two = scorers::weighted_sum<scorers::last_attention, scorers::recent_attention>;
  CHECK(two{.first = {.window = 3}, .second = {.window = 8}}.window == 8);
  CHECK(two{.first = {.window = 9}, .second = {.window = 8}}.window == 9);
  CHECK(both{}.window == 0);
}

}  // namespace
}  // namespace kvpolicy
