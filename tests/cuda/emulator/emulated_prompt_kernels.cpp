#include "cuda/emulator/emulated_launch.hpp"

namespace kvpolicy_test {
KVPOLICY_PROMPT_ATTENTION_KERNELS(KVPOLICY_EMULATE)
KVPOLICY_RETAIN_KERNELS(KVPOLICY_EMULATE)
}  // namespace kvpolicy_test
