// A kernel of a user's own, through the umbrella: compiled to see that nothing else is needed. The same body runs on the
// GPU emulator in own_body_test.cpp.
#include "cuda/own_body.hpp"

#include "kvpolicy/gpu/kvpolicy.cuh"

namespace kvpolicy_test {

void launch_own_body(kvpolicy::gpu::stream_device& device, own_body::arguments const& a) {
  device.launch<own_body>({kvpolicy::gpu::divided_up(a.count, own_body::threads), 1, 1}, a);
}

}  // namespace kvpolicy_test
