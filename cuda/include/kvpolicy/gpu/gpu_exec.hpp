// The executor for GPU engines: compiled, link kvpolicy::gpu.
#pragma once

#include "kvpolicy/gpu/basic_exec.hpp"
#include "kvpolicy/gpu/stream_device.hpp"

namespace kvpolicy {

/// Agrees with host_exec: indices exactly for equal scores, bounds exactly, scores and outputs within fp32 rounding.
using gpu_exec = gpu::basic_exec<gpu::stream_device>;

static_assert(executor<gpu_exec>);

}  // namespace kvpolicy
