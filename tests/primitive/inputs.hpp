// What several primitives are tested on: scores that are no numbers, and random lists.
#pragma once

#include <algorithm>
#include <array>
#include <limits>

#include "conformance/random_cache.hpp"
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

}  // namespace kvpolicy_test
