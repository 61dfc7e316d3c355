// How the GPU emulator runs one of the library's kernels, and the macro that compiles it.
#pragma once

#include "cuda/emulator/emulated_kernels.hpp"
#include "kvpolicy/gpu/kernels.hpp"

namespace kvpolicy_test {

using namespace kvpolicy;
using namespace kvpolicy::gpu;

template <class Body>
void launch_emulated(gpu_emulator& device, kvpolicy::gpu::grid_size grid, typename Body::arguments const& a) {
  device.launch<Body>(grid, a);
}

}  // namespace kvpolicy_test

/// Inside namespace kvpolicy_test.
#define KVPOLICY_EMULATE(...) \
  template void launch_emulated<__VA_ARGS__>(gpu_emulator&, grid_size, typename __VA_ARGS__::arguments const&);
