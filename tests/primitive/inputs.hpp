// What several primitives are tested on: scores that are no numbers, random lists, tables of bounds and shapes of one KV head.
#pragma once

#include <algorithm>
#include <array>
#include <limits>

#include "conformance/random_cache.hpp"
#include "kvpolicy/primitive/pool.hpp"
#include "kvpolicy/selection.hpp"

namespace kvpolicy_test {

inline constexpr float inf = std::numeric_limits<float>::infinity();
inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Ascending ranges of [0, tokens), short and long; now and then none.
inline range_list random_list(std::int64_t tokens, random_source& random) {
  range_list list;
  if (random.one_in(10)) return list;
  for (std::int64_t at = random.one_in(2) ? 0 : random.between(0, tokens - 1); at < tokens;) {
    std::int64_t const end = std::min(tokens, at + random.between(1, random.one_in(3) ? tokens : 9));
    append(list, at, end, random.pick(std::array{reason::sink, reason::scored, reason::recent, reason::open}));
    at = end + random.between(0, 7);
  }
  return list;
}

/// A table of bounds with its memory.
struct stored_bounds : bounds_table {
  std::vector<std::byte> storage;

  stored_bounds(element_type t, std::int64_t h, std::int64_t u, std::int64_t d, std::byte content = {})
      : bounds_table{nullptr, t, h, u, d}, storage(static_cast<std::size_t>(bytes()), content) {
    data = storage.data();
  }
  stored_bounds(stored_bounds const&) = delete;
};

/// One KV head of a random shape.
inline cache_shape one_head_shape(random_source& random, std::int64_t most_tokens) {
  cache_shape shape = random_shape(random, most_tokens);
  shape.q_heads = shape.group();
  shape.kv_heads = 1;
  return shape;
}

}  // namespace kvpolicy_test
