#include "kvpolicy/gpu/base/device_launch.cuh"
#include "kvpolicy/gpu/kernels.hpp"

namespace kvpolicy::gpu {

#define KVPOLICY_COMPILE(...)                                                                          \
  template void stream_device::launch<__VA_ARGS__>(grid_size, typename __VA_ARGS__::arguments const&); \
  template std::int64_t stream_device::blocks_wanted<__VA_ARGS__>() const;
KVPOLICY_PROMPT_ATTENTION_KERNELS(KVPOLICY_COMPILE)
KVPOLICY_RETAIN_KERNELS(KVPOLICY_COMPILE)

}  // namespace kvpolicy::gpu
