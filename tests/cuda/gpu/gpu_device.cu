#include "cuda/gpu/gpu_device.hpp"

#include <cuda_runtime.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kvpolicy/gpu/device_launch.cuh"

namespace kvpolicy_test {

namespace {

void check(cudaError_t result, char const* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
}

/// Blocks of 64 threads with a bug.
template <planted Bug>
struct planted_body {
  static constexpr unsigned threads = 64;
  static constexpr char const* name = "planted";
  struct arguments {
    gpu::buffer<float> out;
  };
  template <class B>
  struct shared {
    typename B::template array<float, 1> one;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    auto const out = block.global(a.out);
    if constexpr (Bug == planted::write_past_the_end) {
      if (block.thread() == 0) out[a.out.size] = 1;
    } else if constexpr (Bug == planted::read_before_write) {
      float const never = out[block.thread() + 64];
      out[block.thread()] = never;
    } else if constexpr (Bug == planted::race) {
      s.one[0] = static_cast<float>(block.thread());
      block.tile().sync();
      float const whose = s.one[0];
      out[block.thread()] = whose;
    } else {
      if (block.thread() % 2 == 0) block.sync();
      out[block.thread()] = 1;
    }
  }
};

}  // namespace

void* allocate_managed(std::size_t bytes) {
  void* at = nullptr;
  if (cudaMallocManaged(&at, bytes == 0 ? 16 : bytes) != cudaSuccess) throw std::bad_alloc();
  return at;
}
void free_managed(void* at) noexcept { cudaFree(at); }

gpu::stream test_stream() {
  static cudaStream_t const on = [] {
    cudaStream_t made = nullptr;
    check(cudaStreamCreate(&made), "making a stream");
    return made;
  }();
  return on;
}
gpu::buffer<std::byte> test_workspace() {
  static auto const& memory = *new gpu::device_array(std::int64_t{1} << 30);  // the driver may be gone before statics are
  return {memory.data(), memory.bytes()};
}
void wait_for(gpu::stream on) { check(cudaStreamSynchronize(on), "waiting for the device"); }
void poison(void* at, std::int64_t bytes, gpu::stream on) {
  static bool const plain = std::getenv("KVPOLICY_UNPOISONED") != nullptr;  // for initcheck, to which this is a first write
  if (plain) return;
  check(cudaMemsetAsync(at, 0xff, static_cast<std::size_t>(bytes), on), "poisoning scratch");
}

captured_step::~captured_step() {
  if (step_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(step_));
}
void captured_step::begin(gpu::stream on) {
  check(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal), "beginning a capture");
}
void captured_step::end(gpu::stream on) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(on, &graph), "capturing a step");
  cudaGraphExec_t made = nullptr;
  check(cudaGraphInstantiate(&made, graph, 0), "making a step's graph");
  cudaGraphDestroy(graph);
  step_ = made;
}
void captured_step::replay(gpu::stream on) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(step_), on), "replaying a step");
}

void run(planted bug) {
  gpu::stream_device device(test_stream(), 1024);
  gpu::device_buffer<float> const few = device.allocate<float>(128);
  auto const launch = [&]<planted Bug>() { device.launch<planted_body<Bug>>({1, 1, 1}, {few.get()}); };
  switch (bug) {
    case planted::write_past_the_end:
      launch.template operator()<planted::write_past_the_end>();
      break;
    case planted::read_before_write:
      launch.template operator()<planted::read_before_write>();
      break;
    case planted::race:
      launch.template operator()<planted::race>();
      break;
    case planted::divergent_barrier:
      launch.template operator()<planted::divergent_barrier>();
  }
  wait_for(test_stream());
}

}  // namespace kvpolicy_test
