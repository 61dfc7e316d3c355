#include "device.hpp"

#include <cuda_runtime_api.h>
#include <ggml-backend-impl.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/ptx/memory.hpp"

namespace kvpolicy::llama::testing {
namespace {

bool events_are_lost = false;
std::int64_t nodes_given = 0;
std::int64_t nodes_computed = 0;

[[noreturn]] void fail(char const* what, char const* name) {
  std::fprintf(stderr, "standin: %s: %s\n", name, what);
  std::abort();
}

void must(cudaError_t status) {
  if (status != cudaSuccess) fail(cudaGetErrorString(status), "CUDA");
}

/// Where the host, which stands for the engine's kernels, finds what has an address of the device's.
std::byte* kernels_place(ggml_tensor const* of) {
  ptx::memory& device = ptx::memory::device();
  if (!device.is_device_only(of->data)) fail("its memory is the host's", of->name);
  return static_cast<std::byte*>(device.host_address(of->data, 1));
}

struct backend {
  cudaStream_t stream = nullptr;
  ggml_backend_t cpu = nullptr;
  std::deque<std::function<void()>> work;  ///< of its life: what was captured is done again

  void add(std::function<void()> what) {
    work.push_back(std::move(what));
    ++nodes_given;
    must(cudaLaunchHostFunc(
        stream, [](void* one) { (*static_cast<std::function<void()>*>(one))(); }, &work.back()));
  }
};
backend& backend_of(ggml_backend_t of) { return *static_cast<backend*>(of->context); }
cudaEvent_t event_of(ggml_backend_event_t of) { return static_cast<cudaEvent_t>(of->context); }

/// A node and its sources as they are now, with the kernels' addresses.
struct launch {
  ggml_tensor node;
  std::array<ggml_tensor, GGML_MAX_SRC> sources;

  explicit launch(ggml_tensor const& of) : node(of), sources{} {
    place(node);
    node.flags |= GGML_TENSOR_FLAG_COMPUTE;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (of.src[i] == nullptr) continue;
      sources[i] = *of.src[i];
      if (sources[i].data != nullptr) place(sources[i]);
      node.src[i] = &sources[i];
    }
  }
  launch(launch const&) = delete;
  launch& operator=(launch const&) = delete;

  void run(ggml_backend_t cpu) {
    ggml_context* const room = ggml_init({ggml_graph_overhead_custom(4, false) + 1024, nullptr, true});
    ggml_cgraph* const graph = ggml_new_graph_custom(room, 4, false);
    ggml_graph_add_node(graph, &node);
    if (ggml_backend_graph_compute(cpu, graph) != GGML_STATUS_SUCCESS) fail("a kernel failed", node.name);
    ggml_free(room);
    ++nodes_computed;
  }

 private:
  static void place(ggml_tensor& of) {
    of.data = kernels_place(&of);
    of.buffer = nullptr;
    of.view_src = nullptr;
    of.extra = nullptr;
  }
};

/// The engine's, made before anything is put before CPUs. It has as many threads as the tests' contexts: sums that are split
/// among threads are the same then.
ggml_backend_t kernels() {
  static ggml_backend_t const made = [] {
    ggml_backend_t const cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    ggml_backend_reg_t const cpus = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu));
    void* const found = ggml_backend_reg_get_proc_address(cpus, "ggml_backend_set_n_threads");
    reinterpret_cast<ggml_backend_set_n_threads_t>(found)(cpu, 1);
    return cpu;
  }();
  return made;
}

// What ggml calls. Its sets and gets of tensors do not wait for a backend's work, as ggml-cuda's do not.

ggml_backend_buffer_type_t buffer_type();
ggml_backend_dev_t device();

ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, std::size_t bytes) {
  ggml_backend_buffer_i does{};
  does.free_buffer = [](ggml_backend_buffer_t b) { must(cudaFree(b->context)); };
  does.get_base = [](ggml_backend_buffer_t b) { return b->context; };
  does.memset_tensor = [](ggml_backend_buffer_t, ggml_tensor* t, std::uint8_t value, std::size_t at, std::size_t size) {
    std::memset(kernels_place(t) + at, value, size);
  };
  does.set_tensor = [](ggml_backend_buffer_t, ggml_tensor* t, void const* from, std::size_t at, std::size_t size) {
    std::memcpy(kernels_place(t) + at, from, size);
  };
  does.get_tensor = [](ggml_backend_buffer_t, ggml_tensor const* t, void* to, std::size_t at, std::size_t size) {
    std::memcpy(to, kernels_place(t) + at, size);
  };
  does.cpy_tensor = [](ggml_backend_buffer_t, ggml_tensor const* from, ggml_tensor* to) {
    bool const mine = ptx::memory::device().is_device_only(from->data);
    if (mine) std::memcpy(kernels_place(to), kernels_place(from), ggml_nbytes(from));
    return mine;
  };
  does.clear = [](ggml_backend_buffer_t b, std::uint8_t value) {
    std::memset(ptx::memory::device().host_address(b->context, b->size), value, b->size);
  };
  void* at = nullptr;
  must(cudaMalloc(&at, bytes + 4096));
  return ggml_backend_buffer_init(type, does, at, bytes);
}

ggml_backend_buffer_type_t buffer_type() {
  static ggml_backend_buffer_type made{};
  made.iface.get_name = [](ggml_backend_buffer_type_t) { return "CUDA0"; };
  made.iface.alloc_buffer = allocate;
  made.iface.get_alignment = [](ggml_backend_buffer_type_t) { return std::size_t{128}; };
  made.device = device();
  return &made;
}

ggml_status compute(ggml_backend_t of, ggml_cgraph* graph) {
  backend& mine = backend_of(of);
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    ggml_tensor const* const node = ggml_graph_node(graph, i);
    bool const moves_nothing = node->op == GGML_OP_NONE || node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE ||
                               node->op == GGML_OP_PERMUTE || node->op == GGML_OP_TRANSPOSE;
    if (moves_nothing || ggml_is_empty(node) || (node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) continue;
    auto const held = std::make_shared<launch>(*node);
    mine.add([held, cpu = mine.cpu] { held->run(cpu); });
  }
  return GGML_STATUS_SUCCESS;
}

ggml_backend_t make_backend(ggml_backend_dev_t of, char const*) {
  ggml_backend_i does{};
  does.get_name = [](ggml_backend_t) { return "CUDA0"; };
  does.free = [](ggml_backend_t b) {
    must(cudaStreamDestroy(backend_of(b).stream));
    delete static_cast<backend*>(b->context);
    delete b;
  };
  does.set_tensor_async = [](ggml_backend_t b, ggml_tensor* t, void const* from, std::size_t at, std::size_t size) {
    auto const* const first = static_cast<std::byte const*>(from);
    backend_of(b).add([to = kernels_place(t) + at, bytes = std::vector<std::byte>(first, first + size)] {
      std::memcpy(to, bytes.data(), bytes.size());
    });
  };
  does.get_tensor_async = [](ggml_backend_t b, ggml_tensor const* t, void* to, std::size_t at, std::size_t size) {
    backend_of(b).add([=, from = kernels_place(t) + at] { std::memcpy(to, from, size); });
  };
  does.synchronize = [](ggml_backend_t b) { must(cudaStreamSynchronize(backend_of(b).stream)); };
  does.graph_compute = compute;
  does.event_record = [](ggml_backend_t b, ggml_backend_event_t e) {
    must(cudaEventRecord(event_of(e), backend_of(b).stream));
  };
  does.event_wait = [](ggml_backend_t b, ggml_backend_event_t e) {
    if (!events_are_lost) must(cudaStreamWaitEvent(backend_of(b).stream, event_of(e), 0));
  };
  auto* const mine = new backend;
  must(cudaStreamCreate(&mine->stream));
  mine->cpu = kernels();
  static ggml_guid guid{'s', 't', 'a', 'n', 'd', 'i', 'n'};
  return new ggml_backend{&guid, does, of, mine};
}

ggml_backend_reg& registry() {
  static ggml_backend_reg made{};
  made.api_version = GGML_BACKEND_API_VERSION;
  made.iface.get_name = [](ggml_backend_reg_t) { return "CUDA"; };
  made.iface.get_device_count = [](ggml_backend_reg_t) { return std::size_t{1}; };
  made.iface.get_device = [](ggml_backend_reg_t, std::size_t) { return device(); };
  made.iface.get_proc_address = [](ggml_backend_reg_t, char const*) -> void* { return nullptr; };
  return made;
}

ggml_backend_dev_t device() {
  static ggml_backend_device made = [] {
    ggml_backend_device_i does{};
    does.get_name = [](ggml_backend_dev_t) { return "CUDA0"; };
    does.get_description = [](ggml_backend_dev_t) { return "a stand-in for a GPU"; };
    does.get_memory = [](ggml_backend_dev_t, std::size_t* free, std::size_t* total) { *free = *total = std::size_t{8} << 30; };
    does.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
    does.get_props = [](ggml_backend_dev_t of, ggml_backend_dev_props* into) {
      *into = {};
      into->name = of->iface.get_name(of);
      into->description = of->iface.get_description(of);
      into->type = of->iface.get_type(of);
      of->iface.get_memory(of, &into->memory_free, &into->memory_total);
      into->caps.async = into->caps.events = true;
    };
    does.init_backend = make_backend;
    does.get_buffer_type = [](ggml_backend_dev_t) { return buffer_type(); };
    does.supports_op = [](ggml_backend_dev_t, ggml_tensor const* op) {
      static ggml_backend_dev_t const cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
      return op->op != GGML_OP_CUSTOM && ggml_backend_dev_supports_op(cpu, op);
    };
    does.supports_buft = [](ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return type == buffer_type(); };
    does.event_new = [](ggml_backend_dev_t of) {
      cudaEvent_t event = nullptr;
      must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      return new ggml_backend_event{of, event};
    };
    does.event_free = [](ggml_backend_dev_t, ggml_backend_event_t e) {
      must(cudaEventDestroy(event_of(e)));
      delete e;
    };
    does.event_synchronize = [](ggml_backend_dev_t, ggml_backend_event_t e) { must(cudaEventSynchronize(event_of(e))); };
    return ggml_backend_device{does, nullptr, nullptr};
  }();
  made.reg = &registry();
  return &made;
}

}  // namespace

void register_standin() {
  static bool const done = (kernels(), ggml_backend_register(&registry()), true);
  static_cast<void>(done);
}

std::int64_t standin_nodes() { return nodes_computed; }
std::int64_t standin_given() { return nodes_given; }

void lose_events(bool lost) { events_are_lost = lost; }

}  // namespace kvpolicy::llama::testing
