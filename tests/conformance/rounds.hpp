// How many random cases a suite runs.
#pragma once

#include <cstdlib>

namespace kvpolicy_test {

/// `whole`, or under a sanitizer, where all is several times slower, a quarter of it; times KVPOLICY_ROUNDS where that is set.
inline int rounds_of(int whole) {
  char const* const set = std::getenv("KVPOLICY_ROUNDS");
  int const times = set == nullptr ? 1 : std::atoi(set);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return times * ((whole + 3) / 4);
#else
  return times * whole;
#endif
}

}  // namespace kvpolicy_test
