#include "kvpolicy/budgets/by_head_role.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("a profile of another layout is refused, though it has as many heads") {
  std::array<head_profile, 16> heads{};  // of 2 layers x 8 heads
  heads[7].role = head_role::pivot;
  heads[0].role = head_role::satellite;
  heads[0].pivot = 7;
  budgets::by_head_role const budget{.heads = heads};
  cache_shape shape{.layers = 2, .q_heads = 8, .kv_heads = 8, .head_dim = 8, .max_tokens = 64};
  CHECK_NOTHROW(budget.check(shape));
  shape.layers = 8;
  shape.q_heads = shape.kv_heads = 2;
  CHECK_THROWS_WITH(budget.check(shape), ContainsSubstring("KV head 7") && ContainsSubstring("profile this model"));
}

TEST_CASE("a satellite without a pivot is refused") {
  std::array<head_profile, 4> heads{};
  heads[1].role = head_role::satellite;
  cache_shape const shape{.layers = 2, .q_heads = 2, .kv_heads = 2, .head_dim = 8, .max_tokens = 64};
  for (std::int32_t const pivot : {-1, 0, 2}) {  // none, one that is no pivot, one behind the layer
    heads[1].pivot = pivot;
    CHECK_THROWS_AS((budgets::by_head_role{.heads = heads}.check(shape)), invalid_value);
  }
}

}  // namespace
}  // namespace kvpolicy
