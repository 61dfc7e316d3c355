#include "kvpolicy/scorers/trigonometric.hpp"

#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/presets/triattention.hpp"
#include "methods/naive_world.hpp"

namespace kvpolicy_test::methods {
namespace {

TEST_CASE("triattention may begin with a step, and needs a prompt to evict") {
  random_source random(2402);
  cache_shape const shape{1, 2, 1, 4, 40, element_type::f32};
  world const w(shape, random);
  std::vector<query_moment> const moments(4, query_moment{.5f, .5f, 1});
  host_exec exec;
  auto state = start(presets::triattention{.moments = moments, .tokens = 6, .every = 8, .recent = 2}, shape);
  for (std::int64_t n = 1; n <= 8; ++n) REQUIRE_NOTHROW(state.choose(w.view(n), {0}, w.step(0, n), exec));
  REQUIRE_THROWS_AS(state.choose(w.view(9), {0}, w.step(0, 9), exec), unsupported);
  auto const of_prompt = w.prompt(0, 8);
  REQUIRE_NOTHROW(state.prefill(w.view(8), {0}, of_prompt, exec));
  for (std::int64_t n = 9; n <= 20; ++n) REQUIRE_NOTHROW(state.choose(w.view(n), {0}, w.step(0, n), exec));
}

TEST_CASE("moments of another model are refused: by their number, and by the channels that a prompt's embedding rotates") {
  random_source random(2403);
  cache_shape const shape{1, 2, 1, 4, 40, element_type::f32};
  world const w(shape, random);
  host_exec exec;
  std::vector<query_moment> const moments(6, query_moment{.5f, .5f, 1});
  REQUIRE_THROWS_AS(start(presets::triattention{.tokens = 6, .recent = 2}, shape), invalid_value);
  REQUIRE_THROWS_AS(start(presets::triattention{.moments = std::span(moments).first(3), .tokens = 6, .recent = 2}, shape),
                    invalid_value);
  REQUIRE_THROWS_AS(start(presets::triattention{.moments = moments, .tokens = 6, .recent = 2}, shape),
                    invalid_value);  // 3 pairs of 4 channels
  auto state = start(presets::triattention{.moments = std::span(moments).first(2), .tokens = 6, .recent = 2}, shape);
  REQUIRE_THROWS_AS(state.prefill(w.view(8), {0}, w.prompt(0, 8), exec), unsupported);  // the model rotates 2 pairs
}

TEST_CASE("what a prompt's end says of the sequence counts where rows are gone") {
  // A key of one pair at position 40, of 50; only its row and nine others are there when the prompt ends.
  scorers::trigonometric const score{.moments = {}, .farthest = 1};
  cache_shape const shape{1, 1, 1, 2, 60, element_type::f32};
  random_source random(2404);
  world const w(shape, random);
  std::vector<query_moment> const moments{{1, 0, 1}};
  auto const scores_at = [&](std::int64_t position) {
    scorers::trigonometric with = score;
    with.moments = moments;
    auto memory = with.start(shape);
    struct none {
    } summaries;
    own_view const view = w.view(10);
    prompt_signals const prompt = w.prompt(0, 10);
    score_input heard{view, {0}, {0, 1}, 10, position, summaries, memory, {}, &prompt};
    host_exec exec;
    with.begin(heard, exec);
    std::vector<float> out(10);
    heard.prompt_tokens = 10;
    with.score(heard, table<float>{out.data(), 1, 10, 10}, exec);
    return out;
  };
  REQUIRE(scores_at(10) != scores_at(50));
}

}  // namespace
}  // namespace kvpolicy_test::methods
