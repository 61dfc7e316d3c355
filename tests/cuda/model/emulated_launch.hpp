// How the checked model runs one of the library's kernels, and the macro that compiles it.
#pragma once

#include "cuda/model/emulated_kernels.hpp"
#include "kvpolicy/cuda/kernels.hpp"

namespace kvpolicy_test {

using namespace kvpolicy;
using namespace kvpolicy::cuda;

template <class Body>
void launch_emulated(checked_device& device, kvpolicy::cuda::grid_size grid, typename Body::arguments const& a) {
  device.launch<Body>(grid, a);
}

}  // namespace kvpolicy_test

/// Inside namespace kvpolicy_test.
#define KVPOLICY_EMULATE(...) \
  template void launch_emulated<__VA_ARGS__>(checked_device&, grid_size, typename __VA_ARGS__::arguments const&);
