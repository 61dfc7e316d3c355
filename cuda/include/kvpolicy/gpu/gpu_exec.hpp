// The executor for GPU engines. Compiled: link kvpolicy::gpu.
#pragma once

#include "kvpolicy/gpu/base/stream_device.hpp"
#include "kvpolicy/gpu/exec/basic_exec.hpp"

namespace kvpolicy {

/// Runs the primitives on a GPU; see gpu::basic_exec.
/// It agrees with host_exec: exactly in indices of equal scores and in bounds, within fp32 rounding in scores and outputs.
using gpu_exec = gpu::basic_exec<gpu::stream_device>;

static_assert(executor<gpu_exec>);

}  // namespace kvpolicy
