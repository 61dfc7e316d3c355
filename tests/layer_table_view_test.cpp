#include "kvpolicy/layer_table_view.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>

namespace kvpolicy {
namespace {

TEST_CASE("a layer table's rows are each layer's own, cut to the tokens that there are", "[interop]") {
  std::array<float, 12> cells{};
  for (std::size_t i = 0; i < cells.size(); ++i) cells[i] = static_cast<float>(i);
  // Layer 1 begins in the middle, and its values lie backwards.
  auto const row_of = [&](std::size_t first, std::int64_t stride) {
    rows made{};
    made.base = reinterpret_cast<std::byte const*>(&cells[first]);
    made.type = element_type::f32;
    made.heads = made.head_dim = 1;
    made.tokens = 6;
    made.token_stride = stride * 4;
    made.dim_stride = 4;
    return made;
  };
  std::array const keys{row_of(0, 1), row_of(6, 1)};
  std::array const values{row_of(0, 2), row_of(11, -1)};
  layer_table_view const view{
      .cache = {2, 1, 1, 1, 6, element_type::f32}, .count = 4, .key_rows = keys.data(), .value_rows = values.data()};
  REQUIRE(view.shape().layers == 2);
  REQUIRE(view.tokens() == 4);
  REQUIRE(view.keys({0}).tokens == 4);
  float value = -1;
  view.keys({1}).load({0}, {3}, {&value, 1});
  REQUIRE(value == 9);
  view.values({1}).load({0}, {3}, {&value, 1});
  REQUIRE(value == 8);
  REQUIRE(keys[0].tokens == 6);
  REQUIRE(layer_table_view{.cache = view.cache, .count = 4}.keys({1}).base == nullptr);  // a verb says what lacks
}

}  // namespace
}  // namespace kvpolicy
