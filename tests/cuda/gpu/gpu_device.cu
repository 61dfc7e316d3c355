#include "cuda/gpu/gpu_device.hpp"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "kvpolicy/cuda/device_launch.cuh"

namespace kvpolicy_test {

namespace {

void check(cudaError_t result, char const* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
}

struct past_the_end_body {
  static constexpr unsigned threads = 32;
  static constexpr char const* name = "past_the_end";
  struct arguments {
    cuda::buffer<float> out;
  };
  template <class B>
  struct shared {};

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    if (block.thread() == 0) block.global(a.out)[a.out.size] = 1;
  }
};

}  // namespace

void* allocate_managed(std::size_t bytes) {
  void* at = nullptr;
  if (cudaMallocManaged(&at, bytes == 0 ? 16 : bytes) != cudaSuccess) throw std::bad_alloc();
  return at;
}
void free_managed(void* at) noexcept { cudaFree(at); }

cuda::stream test_stream() {
  static cudaStream_t const on = [] {
    cudaStream_t made = nullptr;
    check(cudaStreamCreate(&made), "making a stream");
    return made;
  }();
  return on;
}
void wait_for(cuda::stream on) { check(cudaStreamSynchronize(on), "waiting for the device"); }

captured_step::~captured_step() {
  if (step_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(step_));
}
void captured_step::begin(cuda::stream on) {
  check(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal), "beginning a capture");
}
void captured_step::end(cuda::stream on) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(on, &graph), "capturing a step");
  cudaGraphExec_t made = nullptr;
  check(cudaGraphInstantiate(&made, graph, 0), "making a step's graph");
  cudaGraphDestroy(graph);
  step_ = made;
}
void captured_step::replay(cuda::stream on) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(step_), on), "replaying a step");
}

void write_past_the_end() {
  cuda::stream_device device(test_stream(), 1024);
  cuda::device_buffer<float> const few = device.allocate<float>(32);
  device.launch<past_the_end_body>({1, 1, 1}, {few.get()});
  wait_for(test_stream());
}

}  // namespace kvpolicy_test
