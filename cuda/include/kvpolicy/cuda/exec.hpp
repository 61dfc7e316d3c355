// The executor for GPU engines: compiled, link kvpolicy::cuda.
#pragma once

#include "kvpolicy/cuda/basic_exec.hpp"
#include "kvpolicy/cuda/stream_device.hpp"

namespace kvpolicy {

/// Agrees with host_exec: indices exactly for equal scores, bounds exactly, scores and outputs within fp32 rounding.
using cuda_exec = cuda::basic_exec<cuda::stream_device>;

static_assert(executor<cuda_exec>);

}  // namespace kvpolicy
