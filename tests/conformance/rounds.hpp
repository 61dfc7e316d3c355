// How many random cases a suite runs.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace kvpolicy_test {

/// `whole`, or under a sanitizer, where all is several times slower, a quarter of it; times KVPOLICY_ROUNDS, such as 8 or .1,
/// where that is set. One at least.
inline int rounds_of(int whole) {
  char const* const set = std::getenv("KVPOLICY_ROUNDS");
  double const times = set == nullptr ? 1 : std::atof(set);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  whole = (whole + 3) / 4;
#endif
  return std::max(1, static_cast<int>(times * whole));
}

}  // namespace kvpolicy_test
