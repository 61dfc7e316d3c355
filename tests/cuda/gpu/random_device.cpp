// Lets the package of tests/cuda/lease.sh start on Ubuntu 22.04. Its static libstdc++ takes std::random_device's numbers from
// arc4random, the one symbol that GLIBC 2.35 lacks.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" std::uint32_t arc4random() noexcept {
  std::uint32_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) std::abort();
  return number;
}
