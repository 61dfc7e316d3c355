#include "kvpolicy/triggers/drift.hpp"

#include <catch2/catch_test_macros.hpp>

#include "conformance/history.hpp"

namespace kvpolicy_test {
namespace {

// Nothing ever falls below an overlap of 0: the pivot never drifts.
TEST_CASE("what a satellite was given at the prompt's end stands until its pivot drifts", "[trigger]") {
  random_source random(155);
  cache_shape const shape{1, 4, 2, 8, 200, element_type::f32};
  random_cache const cache(shape, layout::head_major, 8, random);
  std::array const heads{head_profile{.role = head_role::pivot}, head_profile{.role = head_role::satellite, .pivot = 0}};
  presets::heterocache const policy{.heads = heads, .tokens = 60, .full_share = 1, .drift = 0, .after = 0};
  host_exec exec;
  std::vector<float> const last = random.reals(8 * 32);
  lists_copy first;
  for (int request = 0; request < 2; ++request) {  // with other queries after the same prompt
    auto state = start(policy, shape);
    state.prefill(own_view{&cache, 100}, {0}, {.queries = {last.data(), 8, 4, 32, 8, 1}}, exec);
    for (std::int64_t n = 101; n <= 130; ++n) {
      std::vector<float> const queries = random.reals(32);
      range_list read = state.choose(own_view{&cache, n}, {0}, {queries.data(), 4, 8, 1}, exec).of({1});
      truncate(read, 100);
      if (first.empty()) first = {read};
      INFO("request " << request << " tokens " << n);
      REQUIRE(read == first[0]);
    }
  }
}

// After a cut the steps are counted again from where it left them: what fired later is of steps that are no more.
TEST_CASE("a satellite is not due by what fired in steps that were cut off", "[trigger]") {
  cache_shape const shape{1, 4, 2, 8, 200, element_type::f32};
  triggers::drift const drift{};
  auto state = drift.start(shape);
  state.fired[1] = state.now = 20;
  REQUIRE(drift.due(state, {0}, {1}, 5));
  REQUIRE_FALSE(drift.due(state, {0}, {1}, 0));
  REQUIRE_FALSE(drift.due(state, {0}, {0}, 5));
  state.restart();
  for (std::int64_t now = 0; now < 25; ++now) {
    state.now = now;
    for (std::int64_t const since : {0, 1, 7, 30}) REQUIRE_FALSE(drift.due(state, {0}, {1}, since));
  }
}

TEST_CASE("a drift window is odd and short, and so is what attention is averaged over", "[trigger]") {
  cache_shape const shape{1, 4, 2, 8, 200, element_type::f32};
  REQUIRE_NOTHROW(triggers::drift{.window = 15, .every = 15, .smooth = 1}.start(shape));
  for (std::int32_t const window : {0, 2, 17, -1})
    REQUIRE_THROWS_AS((triggers::drift{.window = window, .every = 17}.start(shape)), invalid_value);
  REQUIRE_THROWS_AS((triggers::drift{.window = 3, .every = 2}.start(shape)), invalid_value);
  for (std::int32_t const smooth : {0, 4, -3}) REQUIRE_THROWS_AS(triggers::drift{.smooth = smooth}.start(shape), invalid_value);
}

}  // namespace
}  // namespace kvpolicy_test
