#include "kvpolicy/scorers/current_attention.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "conformance/random_cache.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/segments/tokens.hpp"

namespace kvpolicy_test {
namespace {

// Keys 0 1 0 and a current token that is not scored; scale ln 2. The query 1 weighs them 1/4 2/4 1/4, the query -1 2/5 1/5 2/5.
std::array<float, 3> scores(scorers::current_attention const& score) {
  constexpr cache_shape shape{1, 2, 1, 1, 4, element_type::f32};
  random_source random(2702);
  random_cache cache(shape, layout::head_major, 4, random);
  std::vector<float> const keys{0, 1, 0, 9};
  for (std::int64_t t = 0; t < 4; ++t) cache.set_key(0, 0, t, 0, keys[static_cast<std::size_t>(t)]);
  auto memory = score.start(shape);
  auto summaries = pools::none{}.start(shape, segments::tokens{});
  own_view const view{&cache, 4};
  std::array<float, 2> const queries{1, -1};
  score_input<own_view, decltype(summaries), decltype(memory)> const input{
      view, {0}, {0, 1}, 4, 3, summaries, memory, {queries.data(), 2, 1, std::log(2.f)}};
  std::array<float, 3> made{};
  host_exec exec;
  score.score(input, table<float>{made.data(), 1, 3, 3}, exec);
  return made;
}
void expect(std::array<float, 3> const& got, std::array<double, 3> const& want) {
  for (std::size_t t = 0; t < 3; ++t) REQUIRE(std::abs(static_cast<double>(got[t]) - want[t]) < 1e-6);
}

TEST_CASE("a token's score is its softmax weight among the scored tokens, of the group's mean or its largest head", "[score]") {
  expect(scores({}), {(1 / 4. + 2 / 5.) / 2, (2 / 4. + 1 / 5.) / 2, (1 / 4. + 2 / 5.) / 2});
  expect(scores({group_merge::maximum, {}}), {2 / 5., 2 / 4., 2 / 5.});
}

TEST_CASE("a neighbour's weight counts where weights are smoothed", "[score]") {
  expect(scores({group_merge::maximum, {smoothing::kind::maximum, 3}}), {2 / 4., 2 / 4., 2 / 4.});
}

}  // namespace
}  // namespace kvpolicy_test
