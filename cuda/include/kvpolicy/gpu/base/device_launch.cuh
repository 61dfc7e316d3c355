// How a stream_device runs a body. For nvcc: the library's own kernels and yours.
#pragma once

#include <cuda_runtime.h>

#include "kvpolicy/gpu/base/device_block.cuh"
#include "kvpolicy/gpu/base/stream_device.hpp"

namespace kvpolicy::gpu {

/// Checks the result of a launch.
/// @param kernel  the body's name
/// @param grid  its blocks
/// @param result  what CUDA returned
/// @throws device_error with the kernel, its grid and CUDA's reason
void check_launch(char const* kernel, grid_size const& grid, cudaError_t result);

template <class Body>
std::int64_t stream_device::blocks_wanted() const {
  return blocks_of(Body::name, reinterpret_cast<void const*>(&kernel_of<Body>), static_cast<int>(Body::threads));
}

template <class Body>
void stream_device::launch(grid_size grid, typename Body::arguments const& arguments) {
  static_assert(Body::threads % 32 == 0 && Body::threads <= 1024);
  static_assert(std::is_trivially_copyable_v<typename Body::arguments>);
  if (grid.x <= 0 || grid.y <= 0 || grid.z <= 0) return;
  if (grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535)
    return check_launch(Body::name, grid, cudaErrorInvalidConfiguration);
  // This result is the launch's own; cudaGetLastError() would also report earlier failures.
  void* pointers[] = {const_cast<typename Body::arguments*>(&arguments)};
  dim3 const blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
  check_launch(
      Body::name, grid,
      cudaLaunchKernel(reinterpret_cast<void const*>(&kernel_of<Body>), blocks, dim3(Body::threads), pointers, 0, stream_));
}

}  // namespace kvpolicy::gpu
