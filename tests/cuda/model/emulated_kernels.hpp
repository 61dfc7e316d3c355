// The library's kernels on the checked model of a GPU, compiled once for all programs.
#pragma once

#include "cuda/model/checked_device.hpp"

namespace kvpolicy_test {

/// Runs a body of kvpolicy/cuda/kernels.hpp: emulated_unit_kernels.cpp and its neighbours define these. Link
/// kvpolicy_cuda_model.
template <class Body>
void launch_emulated(checked_device& device, kvpolicy::cuda::grid_size grid, typename Body::arguments const& a);

}  // namespace kvpolicy_test
