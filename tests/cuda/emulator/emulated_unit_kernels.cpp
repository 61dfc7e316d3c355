#include "cuda/emulator/emulated_launch.hpp"

namespace kvpolicy_test {
KVPOLICY_UNIT_KERNELS(KVPOLICY_EMULATE)
}  // namespace kvpolicy_test
