#include "kvpolicy/gpu/base/device_launch.cuh"
#include "kvpolicy/gpu/kernels.hpp"

namespace kvpolicy::gpu {

#define KVPOLICY_COMPILE(...)                                                                          \
  template void stream_device::launch<__VA_ARGS__>(grid_size, typename __VA_ARGS__::arguments const&); \
  template std::int64_t stream_device::blocks_wanted<__VA_ARGS__>() const;
KVPOLICY_POOLING_KERNELS(KVPOLICY_COMPILE)
KVPOLICY_PAGES_KERNELS(KVPOLICY_COMPILE)
KVPOLICY_HIERARCHY_KERNELS(KVPOLICY_COMPILE)
KVPOLICY_DRIFT_KERNELS(KVPOLICY_COMPILE)
KVPOLICY_SENTENCES_KERNELS(KVPOLICY_COMPILE)
KVPOLICY_OFFLOAD_KERNELS(KVPOLICY_COMPILE)
KVPOLICY_STEP_KERNELS(KVPOLICY_COMPILE)

}  // namespace kvpolicy::gpu
