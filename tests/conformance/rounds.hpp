// How many random cases a suite runs.
#pragma once

namespace kvpolicy_test {

/// `whole`, or under a sanitizer, where all is several times slower, a quarter of it.
constexpr int rounds_of(int whole) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return (whole + 3) / 4;
#else
  return whole;
#endif
}

}  // namespace kvpolicy_test
