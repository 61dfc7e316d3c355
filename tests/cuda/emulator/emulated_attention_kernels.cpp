#include "cuda/emulator/emulated_launch.hpp"

namespace kvpolicy_test {
KVPOLICY_ATTENTION_KERNELS(KVPOLICY_EMULATE)
}  // namespace kvpolicy_test
