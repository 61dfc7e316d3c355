// How long OpenMP's threads, the engine's among them, spin where they wait.
#pragma once

#include <unistd.h>

#include <cstdlib>

namespace kvpolicy {

/// Makes waiting threads spin only for a moment, unless OMP_WAIT_POLICY or GOMP_SPINCOUNT is set. Returns whether it changed
/// that. Beside other work, threads that spin on keep each other from running; threads that sleep at once make the steps of a
/// quiet machine nearly three times as long.
inline bool spin_for_a_moment() {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return false;
  setenv("GOMP_SPINCOUNT", "2000", 1);
  return true;
}

/// The same for this program: OpenMP reads the variable when it is loaded, so the program starts anew, once.
inline void restart_to_spin_for_a_moment(char** argv) {
  if (spin_for_a_moment()) execv("/proc/self/exe", argv);  // where that fails the threads spin on
}

}  // namespace kvpolicy
