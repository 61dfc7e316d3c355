#include "kvpolicy/budget/tokens.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr cache_shape shape{.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 8, .max_tokens = 100};

TEST_CASE("a budget of tokens must be within 1 and the context", "[budget]") {
  REQUIRE_NOTHROW(budget::tokens{1}.check(shape));
  REQUIRE_NOTHROW(budget::tokens{100}.check(shape));
  REQUIRE_THROWS_WITH(budget::tokens{0}.check(shape), ContainsSubstring("a budget of 0 tokens"));
  REQUIRE_THROWS_WITH(budget::tokens{-5}.check(shape), ContainsSubstring("a budget of -5 tokens"));
  REQUIRE_THROWS_WITH(budget::tokens{101}.check(shape), ContainsSubstring("101") && ContainsSubstring("context of 100"));
}

TEST_CASE("a budget of tokens is what a list may keep", "[budget]") { REQUIRE(budget::tokens{64}.most_tokens(shape) == 64); }

}  // namespace
}  // namespace kvpolicy
