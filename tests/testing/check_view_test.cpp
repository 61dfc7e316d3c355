// The library's views show what is there, and a view that does not is found.
#include "kvpolicy/testing/check_view.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace kvpolicy::testing {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

/// Where an engine keeps f32 rows: `[layers, kv_heads, tokens, head_dim]`, keys and values apart.
struct engine_cache {
  cache_shape shape{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 8, .max_tokens = 20, .type = element_type::f32};
  std::vector<float> keys = std::vector<float>(2 * 2 * 20 * 8);
  std::vector<float> values = keys;

  engine_cache() {
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<float>(i), values[i] = -static_cast<float>(i) - 1;
  }
  strided_view<> view(std::int64_t tokens) const {
    constexpr std::int64_t size = sizeof(float);
    byte_strides const strides{.layer = 2 * 20 * 8 * size, .head = 20 * 8 * size, .token = 8 * size, .dim = size};
    return {.cache = shape,
            .token_count = tokens,
            .key_base = keys.data(),
            .value_base = values.data(),
            .key_strides = strides,
            .value_strides = strides};
  }
  void operator()(layer_id layer, head_id head, token_index token, bool value, std::vector<float>& row) const {
    auto const first = (value ? values : keys).begin() + ((layer.value * 2 + head.value) * 20 + token.value) * 8;
    row.assign(first, first + 8);
  }
};

void check_found(strided_view<> const& view, engine_cache const& cache, char const* says) {
  CHECK_THROWS_MATCHES(check_view(view, cache), broken_promise, MessageMatches(ContainsSubstring(says)));
}

TEST_CASE("a view that shows what is there passes", "[testing]") {
  engine_cache const cache;
  for (std::int64_t const tokens : {0, 1, 19, 20}) CHECK_NOTHROW(check_view(cache.view(tokens), cache));
}

TEST_CASE("a view that shows something else is found", "[testing]") {
  engine_cache const cache;
  auto view = cache.view(20);
  SECTION("keys in the place of values") {
    view.value_base = view.key_base;
    check_found(view, cache, "values of layer 0, head 0, token 0 is another row");
  }
  SECTION("another layer's") {
    view.key_strides.layer = 0;
    check_found(view, cache, "keys of layer 1, head 0, token 0");
  }
  SECTION("another head's") {
    view.key_strides.head += static_cast<std::int64_t>(sizeof(float));
    check_found(view, cache, "keys of layer 0, head 1, token 0");
  }
  SECTION("tokens that follow each other elsewhere") {
    view.value_strides.token *= 2;
    view.token_count = 10;
    check_found(view, cache, "values of layer 0, head 0, token 1");
  }
  SECTION("more tokens than there may be") {
    view.token_count = 21;
    check_found(view, cache, "21 tokens; there may be 0 to 20");
  }
  SECTION("heads that do not divide") {
    view.cache.q_heads = 3;
    check_found(view, cache, "query heads divide by KV heads");
  }
}

}  // namespace
}  // namespace kvpolicy::testing
