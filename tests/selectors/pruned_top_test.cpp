#include "kvpolicy/selectors/pruned_top.hpp"

#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/presets/twilight.hpp"
#include "kvpolicy/windows/tokens.hpp"
#include "methods/naive_world.hpp"

namespace kvpolicy_test::methods {
namespace {

constexpr cache_shape shape{1, 2, 1, 4, 90, element_type::f32};

TEST_CASE("a window that protects everything generated leaves pruned_top room for it") {
  random_source random(2203);
  world const w(shape, random);
  policy const wide{keep_all{},
                    keep{segments::pages{4}, pools::bounds{}, scorers::upper_bound{}, budgets::tokens{12},
                         selectors::pruned_top{.5}, windows::tokens{.recent = 1, .generated = true}, triggers::every_step{}}};
  host_exec exec;
  auto state = start(wide, shape);
  state.prefill(w.view(10), {0}, {}, exec);
  for (std::int64_t n = 11; n <= 90; ++n) {
    ints const got = tokens_of(state.choose(w.view(n), {0}, w.step(0, n), exec).of({0}));
    REQUIRE(without(range(10, n), got).empty());
  }
}

TEST_CASE("pruned_top takes a share of the attention, above none") {
  for (double const mass : {0., -.1, 1.1})
    REQUIRE_THROWS_AS(check(presets::twilight{.tokens = 40, .mass = mass}, shape), invalid_value);
  for (double const mass : {.001, 1.}) REQUIRE_NOTHROW(check(presets::twilight{.tokens = 40, .mass = mass}, shape));
}

TEST_CASE("where no weight is a number, pruned_top reads what its window protects") {
  random_source random(2204);
  world w(shape, random);
  std::fill(w.queries.begin(), w.queries.end(), std::numeric_limits<float>::quiet_NaN());
  host_exec exec;
  auto state = start(presets::twilight{.tokens = 40, .page = 4}, shape);
  state.prefill(w.view(60), {0}, {}, exec);
  REQUIRE(tokens_of(state.choose(w.view(61), {0}, w.step(0, 61), exec).of({0})) == ints{0, 1, 2, 3, 60});
}

}  // namespace
}  // namespace kvpolicy_test::methods
