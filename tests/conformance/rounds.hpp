// How many random cases a suite runs.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace kvpolicy_test {

/// A share of `whole`, one case at least. The share is KVPOLICY_ROUNDS: 1 in tests/run.sh --full, .15 where it is not set.
/// Under a sanitizer, where every case takes several times as long, a quarter of that.
inline int rounds_of(int whole) {
  char const* const set = std::getenv("KVPOLICY_ROUNDS");
  double share = set == nullptr ? .15 : std::atof(set);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  share /= 4;
#endif
  return std::max(1, static_cast<int>(share * whole));
}

}  // namespace kvpolicy_test
