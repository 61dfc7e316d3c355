#include "kvpolicy/budgets/adaptive.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <limits>

#include "kvpolicy/exec/host.hpp"

namespace kvpolicy {
namespace {

constexpr cache_shape two_heads{.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 1, .max_tokens = 4};

std::array<std::int32_t, 2> units_of(std::array<float, 8> scores, double safe, std::int32_t each = 2) {
  budgets::adaptive const budget{.each = {.count = each}, .safe = safe};
  std::array<std::int32_t, 2> units{-1, -1};
  host_exec exec;
  budget.allocate({.shape = two_heads, .heads = {0, 2}, .tokens = 4, .prompt = 4, .unit_size = 1},
                  table<float const>{scores.data(), 2, 4, 4}, units, exec);
  return units;
}

// The layer has 4 of 9 8 7 1 and 6 5 2 0: jointly 9 8 7 6.
TEST_CASE("a layer's budget goes to the best of any of its heads, after each had its own", "[budget]") {
  std::array<float, 8> const scores{9, 8, 7, 1, 6, 5, 2, 0};
  CHECK(units_of(scores, 0) == std::array{3, 1});
  CHECK(units_of(scores, .5) == std::array{3, 1});
  CHECK(units_of(scores, 1) == std::array{2, 2});
  CHECK(units_of({9, 8, 7, 6, 5, 4, 3, 2}, 0) == std::array{4, 0});
  CHECK(units_of({9, 8, 7, 6, 5, 4, 3, 2}, .5) == std::array{3, 1});  // one each is safe
  CHECK(units_of(scores, .2, 4) == std::array{4, 4});
}

TEST_CASE("of equal scores the smaller head's come first, and NaN last", "[budget]") {
  float const nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(units_of({1, 1, 1, 1, 1, 1, 1, 1}, 0) == std::array{4, 0});
  CHECK(units_of({1, 1, 1, 1, 1, 1, 1, 1}, .5) == std::array{3, 1});
  CHECK(units_of({nan, nan, nan, nan, 1, 2, 3, 4}, 0) == std::array{0, 4});
}

}  // namespace
}  // namespace kvpolicy
