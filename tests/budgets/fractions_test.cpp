#include "kvpolicy/budgets/fractions.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("fractions are above 0 and at most 1, each of them", "[budget]") {
  cache_shape const shape{.max_tokens = 100};
  REQUIRE_NOTHROW(budgets::fractions{1, 1, .001f}.check(shape));
  REQUIRE_THROWS_WITH((budgets::fractions{0, .5f, .5f}.check(shape)), ContainsSubstring("0.000000"));
  REQUIRE_THROWS_AS((budgets::fractions{.5f, -.1f, .5f}.check(shape)), invalid_value);
  REQUIRE_THROWS_WITH((budgets::fractions{.5f, .5f, 1.5f}.check(shape)), ContainsSubstring("1.500000"));
  REQUIRE_THROWS_AS((budgets::fractions{std::numeric_limits<float>::quiet_NaN(), 1, 1}.check(shape)), invalid_value);
}

TEST_CASE("fractions are of the cache unless tokens replace them", "[budget]") {
  REQUIRE(budgets::fractions{}.relative());
  REQUIRE_FALSE(budgets::fractions{.tokens = 512}.relative());
}

}  // namespace
}  // namespace kvpolicy
