#include "kvpolicy/budgets/global.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <limits>
#include <vector>

#include "kvpolicy/exec/host.hpp"

namespace kvpolicy {
namespace {

using units_of_lists = std::vector<std::int32_t>;

units_of_lists shared(std::vector<float> scores, std::int64_t lists, std::int32_t count, std::int64_t forced = 0) {
  cache_shape const shape{
      .layers = lists, .q_heads = 1, .kv_heads = 1, .head_dim = 1, .max_tokens = 8, .type = element_type::f32};
  std::int64_t const columns = std::ssize(scores) / lists;
  units_of_lists units(static_cast<std::size_t>(lists), -1);
  host_exec exec;
  budgets::global{{.count = count}}.allocate({.shape = shape, .tokens = columns + forced, .forced = forced},
                                             table<float const>{scores.data(), lists, columns, columns}, units, exec);
  return units;
}

TEST_CASE("the best tokens of all layers are taken, however many of them one layer has", "[budget]") {
  // Of twelve, the best six: 9, 8, 7 and the three that are 3 in the first row and the last one.
  std::vector<float> const scores{1, 9, 3, 3, 8, 7, 0, 0, 3, 2, 0, 0};
  REQUIRE(shared(scores, 3, 2) == units_of_lists{3, 2, 1});
  REQUIRE(shared(scores, 3, 1) == units_of_lists{1, 2, 0});
  REQUIRE(shared(scores, 3, 4) == units_of_lists{4, 4, 4});
  REQUIRE(shared(scores, 3, 2, 1) == units_of_lists{1, 2, 0});  // one token of each list is protected already
  REQUIRE(shared(scores, 3, 1, 1) == units_of_lists{0, 0, 0});
}

TEST_CASE("of equal scores the lower layer's are taken, and NaN comes last", "[budget]") {
  REQUIRE(shared({3, 3, 1, 3, 0, 0}, 2, 1) == units_of_lists{2, 0});
  float const nan = std::numeric_limits<float>::quiet_NaN();
  REQUIRE(shared({nan, nan, -5, -6}, 2, 1) == units_of_lists{0, 2});
}

TEST_CASE("a list may get every token, whatever the mean", "[budget]") {
  cache_shape const shape{.layers = 2, .q_heads = 1, .kv_heads = 1, .head_dim = 1, .max_tokens = 50, .type = element_type::f32};
  REQUIRE(budgets::global{{.count = 3}}.most_tokens(shape) == 50);
  REQUIRE_THROWS_AS(budgets::global{{.count = 0}}.check(shape), invalid_value);
}

}  // namespace
}  // namespace kvpolicy
