#include "cuda/gpu/gpu_device.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvpolicy/gpu/base/device_launch.cuh"

namespace kvpolicy_test {

namespace {

void check(cudaError_t result, char const* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
}

/// What lies on the device of each piece of shared memory.
std::map<std::byte*, gpu::device_array>& copies() {
  static auto& all = *new std::map<std::byte*, gpu::device_array>;
  return all;
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

void* allocate_shared(std::size_t bytes) {
  std::unique_ptr<std::byte[]> host(new std::byte[bytes]);  // aligned for every type
  copies()[host.get()] = gpu::device_array(static_cast<std::int64_t>(bytes));
  return host.release();
}
void free_shared(void* at) noexcept {
  copies().erase(static_cast<std::byte*>(at));
  delete[] static_cast<std::byte*>(at);
}
void* copy_of(void const* shared) {
  return shared == nullptr ? nullptr : copies().at(static_cast<std::byte*>(const_cast<void*>(shared))).data();
}
void send_shared(gpu::stream on) {
  for (auto const& [host, device] : copies())
    check(cudaMemcpyAsync(device.data(), host, static_cast<std::size_t>(device.bytes()), cudaMemcpyDefault, on),
          "copying to the device");
  wait_for(on);
}
void fetch_shared(gpu::stream on) {
  for (auto const& [host, device] : copies()) fetch(host, device.data(), static_cast<std::size_t>(device.bytes()), on);
  wait_for(on);
}
void fetch(void* to, void const* on_device, std::size_t bytes, gpu::stream on) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, on_device, bytes, cudaMemcpyDefault, on), "copying from the device");
  wait_for(on);
}

namespace {

cudaStream_t new_stream() {
  cudaStream_t made = nullptr;
  check(cudaStreamCreate(&made), "making a stream");
  return made;
}

}  // namespace

gpu::stream test_stream() {
  static cudaStream_t const on = new_stream();
  return on;
}
gpu::stream side_stream() {
  static cudaStream_t const on = new_stream();
  return on;
}
gpu::buffer<std::byte> test_workspace() {
  static auto const& memory = *new gpu::device_array(std::int64_t{1} << 30);  // the driver may be gone before statics are
  return {memory.data(), memory.bytes()};
}
void wait_for(gpu::stream on) { check(cudaStreamSynchronize(on), "waiting for the device"); }
void poison(void* at, std::int64_t bytes, gpu::stream on) {
  static bool const plain = std::getenv("KVPOLICY_UNPOISONED") != nullptr;  // for initcheck, to which this is a first write
  if (plain || bytes == 0) return;
  check(cudaMemsetAsync(at, 0xff, static_cast<std::size_t>(bytes), on), "poisoning scratch");
}

namespace {

std::int64_t side_by_side_in(cudaGraph_t graph) {
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), "counting a graph's nodes");
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(graph, nodes.data(), &count), "reading a graph's nodes");
  std::size_t edges = 0;
  check(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges), "counting a graph's edges");
  std::vector<cudaGraphNode_t> from(edges), to(edges);
  check(cudaGraphGetEdges(graph, from.data(), to.data(), nullptr, &edges), "reading a graph's edges");
  std::vector<std::vector<char>> before(count, std::vector<char>(count));
  auto const place = [&](cudaGraphNode_t node) {
    return static_cast<std::size_t>(std::ranges::find(nodes, node) - nodes.begin());
  };
  for (std::size_t i = 0; i < edges; ++i) before[place(from[i])][place(to[i])] = 1;
  for (std::size_t over = 0; over < count; ++over)
    for (std::size_t a = 0; a < count; ++a)
      for (std::size_t b = 0; before[a][over] != 0 && b < count; ++b) before[a][b] |= before[over][b];
  std::int64_t made = 0;
  for (std::size_t a = 0; a < count; ++a)
    for (std::size_t b = 0; b < a; ++b) made += before[a][b] == 0 && before[b][a] == 0 ? 1 : 0;
  return made;
}

}  // namespace

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
  side_by_side_ = side_by_side_in(graph);
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
