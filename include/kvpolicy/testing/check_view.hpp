// Checks that a view of an engine's cache shows the rows that are in it.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "kvpolicy/testing/random_cache.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::testing {

/// Reads everything that a view shows, and compares it with what the engine has.
/// @param given  the view
/// @param expected  `expected(layer_id, head_id, token_index, bool value, std::vector<float>& row)` writes a key or value of
///        the engine into `row`, `[head_dim]`
/// @throws broken_promise with the first row that differs, or with an invalid shape of the view
template <kv_cache_view View, class Expected>
  requires std::same_as<typename View::memory, host_memory>
void check_view(View const& given, Expected expected) {
  View const view = given;  // verbs get copies of a view, so a copy is checked
  cache_shape const shape = view.shape();
  auto const fail = [](std::string const& what) { throw broken_promise("a view: " + what); };
  if (shape.layers < 1 || shape.kv_heads < 1 || shape.head_dim < 1 || shape.q_heads % shape.kv_heads != 0) {
    fail("a shape of " + text_of(shape) + "; each must be at least 1, and query heads divide by KV heads");
  }
  if (view.tokens() < 0 || view.tokens() > shape.max_tokens) {
    fail(std::to_string(view.tokens()) + " tokens; there may be 0 to " + std::to_string(shape.max_tokens));
  }
  std::vector<float> want(static_cast<std::size_t>(shape.head_dim));
  std::vector<float> got(want.size());
  for (std::int64_t i = 0; i < shape.layers * 2; ++i) {
    layer_id const layer{i / 2};
    bool const value = i % 2 == 1;
    std::string const whose = std::string(value ? "values" : "keys") + " of layer " + std::to_string(layer.value);
    rows const all = value ? view.values(layer) : view.keys(layer);
    if (all.heads != shape.kv_heads || all.head_dim != shape.head_dim || all.type != shape.type || all.tokens < view.tokens()) {
      fail(whose + " are " + std::to_string(all.heads) + " heads x " + std::to_string(all.tokens) + " tokens x " +
           std::to_string(all.head_dim) + " elements; the view has " + text_of(shape) + " and " +
           std::to_string(view.tokens()) + " tokens, and its element type");
    }
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      rows const one = all.of({h, 1});
      for (std::int64_t t = 0; t < view.tokens(); ++t) {
        expected(layer, head_id{h}, token_index{t}, value, want);
        std::string const where = whose + ", head " + std::to_string(h) + ", token " + std::to_string(t);
        all.load({h}, {t}, got);
        if (std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) != 0) fail(where + " is another row");
        one.load({0}, {t}, got);
        if (std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) != 0) fail(where + " is another row in of()");
      }
    }
  }
}

}  // namespace kvpolicy::testing
