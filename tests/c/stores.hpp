// Stores of the C ABI, and what is put into them.
#pragma once

#include <catch2/catch_test_macros.hpp>

#include <memory>
#include <vector>

#include "c/c_api.hpp"

namespace kvpolicy_test {

constexpr std::int64_t longest = 400;  ///< tokens of a sequence
constexpr float scale = .25f;

inline void ok(kvpolicy_status status) {
  INFO(kvpolicy_message());
  REQUIRE(status == KVPOLICY_OK);
}

inline c_arena arena_of(cache_shape const& shape, std::int64_t bytes = 1 << 24) {
  kvpolicy_shape const sizes = c_shape(shape);
  kvpolicy_arena* made = nullptr;
  ok(kvpolicy_arena_start(&sizes, bytes, &made));
  return c_arena(made);
}
inline c_store store_of(c_arena const& arena, cache_shape const& shape) {
  kvpolicy_shape const sizes = c_shape(shape);
  kvpolicy_store* made = nullptr;
  ok(kvpolicy_store_start(arena.get(), &sizes, &made));
  return c_store(made);
}

/// A few of a cache's tokens, as an engine hands them over.
inline std::unique_ptr<c_tensor> rows_from(rows all, std::int64_t first, std::int64_t count) {
  all.base += first * all.token_stride;
  all.tokens = count;
  return c_rows(all, 0);
}
inline void append(kvpolicy_store* store, random_cache const& cache, std::int64_t first, std::int64_t count) {
  for (std::int64_t l = 0; l < cache.shape().layers; ++l) {
    ok(kvpolicy_store_append(store, l, *rows_from(cache.keys(l, longest), first, count),
                             *rows_from(cache.values(l, longest), first, count)));
  }
}

inline std::vector<float> random_floats(random_source& random, std::int64_t count) {
  std::vector<float> made(static_cast<std::size_t>(count));
  for (float& x : made) x = static_cast<float>(random.between(-1000, 1000)) / 500;
  return made;
}

}  // namespace kvpolicy_test
