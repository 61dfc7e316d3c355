// The library's kernels on the GPU emulator, compiled once for all programs.
#pragma once

#include "cuda/emulator/gpu_emulator.hpp"

namespace kvpolicy_test {

/// Runs a body of kvpolicy/gpu/kernels.hpp: emulated_step_kernels.cpp and its neighbours define these. Link
/// kvpolicy_gpu_emulator.
template <class Body>
void launch_emulated(gpu_emulator& device, kvpolicy::gpu::grid_size grid, typename Body::arguments const& a);

}  // namespace kvpolicy_test
