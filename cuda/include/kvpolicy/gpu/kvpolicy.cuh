// The CUDA umbrella: executor, decoder, and what your own kernel bodies need. For nvcc; the .hpp headers that it includes are
// for any compiler. Policies: kvpolicy/kvpolicy.hpp.
#pragma once

#include "kvpolicy/gpu/base/device_launch.cuh"  // how a body runs on a GPU
#include "kvpolicy/gpu/decoder.hpp"             // a batch's decode steps, chosen on the device
#include "kvpolicy/gpu/gpu_exec.hpp"            // gpu_exec, for the four verbs
#include "kvpolicy/gpu/kernels.hpp"             // the library's own kernels
#include "kvpolicy/gpu/step/page_table.hpp"     // engines' page tables from a step's lists

// The library has its kernels compiled; files that include this do not compile them again.
namespace kvpolicy::gpu {
#define KVPOLICY_ELSEWHERE(...)                                                                               \
  extern template void stream_device::launch<__VA_ARGS__>(grid_size, typename __VA_ARGS__::arguments const&); \
  extern template std::int64_t stream_device::blocks_wanted<__VA_ARGS__>() const;
KVPOLICY_ATTENTION_KERNELS(KVPOLICY_ELSEWHERE)
KVPOLICY_PROMPT_ATTENTION_KERNELS(KVPOLICY_ELSEWHERE)
KVPOLICY_RETAIN_KERNELS(KVPOLICY_ELSEWHERE)
KVPOLICY_POOLING_KERNELS(KVPOLICY_ELSEWHERE)
KVPOLICY_PAGES_KERNELS(KVPOLICY_ELSEWHERE)
KVPOLICY_HIERARCHY_KERNELS(KVPOLICY_ELSEWHERE)
KVPOLICY_DRIFT_KERNELS(KVPOLICY_ELSEWHERE)
KVPOLICY_SENTENCES_KERNELS(KVPOLICY_ELSEWHERE)
KVPOLICY_OFFLOAD_KERNELS(KVPOLICY_ELSEWHERE)
KVPOLICY_STEP_KERNELS(KVPOLICY_ELSEWHERE)
#undef KVPOLICY_ELSEWHERE
}  // namespace kvpolicy::gpu
