#include "gpu_backend.hpp"

#include <cuda_runtime_api.h>

#include <string>

namespace kvpolicy::c {
namespace {

void succeeded(cudaError_t error, char const* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // reported here, not by somebody's next call
  throw gpu::device_error(std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace

gpu_backend::gpu_backend(cache_shape const&, std::int32_t device, gpu::stream stream, std::int64_t workspace)
    : rows{.host = false, .cuda = true, .cuda_id = check_current(device)},
      vectors{.host = true, .cuda = true, .cuda_id = device},
      exec(stream, workspace == 0 ? std::int64_t{64} << 20 : workspace) {}

std::int32_t gpu_backend::check_current(std::int32_t device) {
  int devices = 0;
  succeeded(cudaGetDeviceCount(&devices), "a sequence on a CUDA device needs one, and there is none that can be used");
  int current = -1;
  succeeded(cudaGetDevice(&current), "the current CUDA device can't be read");
  KVPOLICY_EXPECTS(current == device, "the sequence is on CUDA device " + std::to_string(device) +
                                          ", the calling thread's is " + std::to_string(current) +
                                          "; call cudaSetDevice first");
  return device;
}

tensor gpu_backend::on_host(tensor const& given, std::size_t axes, std::size_t size) {
  if (!given.on_device) return given;
  auto const width = static_cast<std::size_t>(given.extent[axes - 1]) * size;
  auto const rows_each = static_cast<std::size_t>(given.extent[axes - 2]);
  std::size_t const pieces = axes == 3 ? static_cast<std::size_t>(given.extent[0]) : 1;
  copied_.resize(pieces * rows_each * width);
  tensor made = given;
  made.data = copied_.data();
  made.on_device = false;
  made.stride[axes - 1] = static_cast<std::int64_t>(size);
  made.stride[axes - 2] = static_cast<std::int64_t>(width);
  if (axes == 3) made.stride[0] = static_cast<std::int64_t>(rows_each * width);
  gpu::stream const stream = exec.device().on();
  auto const copy = [&](std::size_t to, std::size_t from, std::size_t bytes) {
    succeeded(cudaMemcpyAsync(made.data + to, given.data + from, bytes, cudaMemcpyDeviceToHost, stream),
              "queries can't be copied to the host");
  };
  if (given.stride == made.stride) {
    copy(0, 0, pieces * rows_each * width);
  } else {
    for (std::size_t i = 0; i < pieces * rows_each; ++i) {
      std::size_t const piece = axes == 3 ? (i / rows_each) * static_cast<std::size_t>(given.stride[0]) : 0;
      copy(i * width, piece + i % rows_each * static_cast<std::size_t>(given.stride[axes - 2]), width);
    }
  }
  succeeded(cudaStreamSynchronize(stream), "queries can't be copied to the host");
  return made;
}

}  // namespace kvpolicy::c
