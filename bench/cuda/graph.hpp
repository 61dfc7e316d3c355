// Owners of CUDA events and graphs, whose failures are thrown.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <string>

#include "kvpolicy/gpu/base/stream_device.hpp"

namespace kvpolicy::bench {

inline void check(cudaError_t result, std::string const& what) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // it is told of here, and not at the next case
  std::string const told = what + ": " + cudaGetErrorString(result);
  if (result == cudaErrorMemoryAllocation) throw gpu::device_memory_exceeded(told);
  throw gpu::device_error(told);
}

class event {
 public:
  event() { check(cudaEventCreate(&event_), "creating an event"); }
  ~event() { cudaEventDestroy(event_); }
  event(event const&) = delete;
  event& operator=(event const&) = delete;

  void record(gpu::stream on) { check(cudaEventRecord(event_, on), "recording an event"); }
  double us_since(event const& begin) const {
    float ms = 0;
    check(cudaEventSynchronize(event_), "waiting for an event");
    check(cudaEventElapsedTime(&ms, begin.event_, event_), "asking for a time");
    return 1000.0 * ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Launches of a stream, to be launched again.
class captured_graph {
 public:
  captured_graph(gpu::stream on, std::function<void()> const& enqueue) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    try {
      enqueue();
    } catch (...) {
      cudaStreamEndCapture(on, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(on, &graph), "ending a capture");
    cudaError_t const made = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(made, "instantiating a graph");
    check(cudaGraphUpload(graph_, on), "uploading a graph");
  }
  ~captured_graph() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }
  captured_graph(captured_graph const&) = delete;
  captured_graph& operator=(captured_graph const&) = delete;

  void launch(gpu::stream on) { check(cudaGraphLaunch(graph_, on), "launching a graph"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace kvpolicy::bench
