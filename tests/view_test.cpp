#include "kvpolicy/view.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <string>

namespace kvpolicy_test {
namespace {

using namespace kvpolicy;

strided_view<> of(cache_shape const& shape) { return {.cache = shape}; }

TEST_CASE("a shape that makes no sense is refused, with its numbers", "[view]") {
  cache_shape const good{2, 8, 2, 64, 4096, element_type::f16};
  REQUIRE(shape_of(of(good)) == good);
  REQUIRE(good.group() == 4);
  for (auto const member : {&cache_shape::layers, &cache_shape::q_heads, &cache_shape::kv_heads, &cache_shape::head_dim,
                            &cache_shape::max_tokens}) {
    for (std::int64_t const wrong : {0, -1}) {
      cache_shape bad = good;
      bad.*member = wrong;
      REQUIRE_THROWS_AS(shape_of(of(bad)), invalid_value);
    }
  }
  cache_shape ragged = good;
  ragged.q_heads = 7;
  REQUIRE_THROWS_AS(shape_of(of(ragged)), invalid_value);
  cache_shape longest = good;
  longest.max_tokens = longest_sequence;
  REQUIRE_NOTHROW(shape_of(of(longest)));
  longest.max_tokens += 1;
  try {
    shape_of(of(longest));
    FAIL("more tokens than any state has room for were accepted");
  } catch (invalid_value const& refused) {
    REQUIRE(std::string(refused.what()).find("67108865") != std::string::npos);
  }
}

TEST_CASE("rows are contiguous where neighbours in a row touch", "[view]") {
  strided_view<> view{.cache = {1, 1, 1, 8, 4, element_type::f16}, .key_strides = {0, 0, 16, 2}, .value_strides = {0, 0, 2, 8}};
  REQUIRE(view.keys({0}).contiguous());
  REQUIRE_FALSE(view.values({0}).contiguous());
  view.cache.type = element_type::f32;
  REQUIRE_FALSE(view.keys({0}).contiguous());
}

struct owner {  // not a view: copying it copies the cache
  using memory = host_memory;
  std::string cache;
  cache_shape shape() const { return {}; }
  std::int64_t tokens() const { return 0; }
  rows keys(layer_id) const { return {}; }
  rows values(layer_id) const { return {}; }
};
static_assert(!kv_cache_view<owner>);

}  // namespace
}  // namespace kvpolicy_test
