#include "device.hpp"

#include <ggml-backend-impl.h>

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace kvpolicy::llama::testing {
namespace {

bool waits_are_lost = false;
std::int64_t nodes_computed = 0;

[[noreturn]] void fail(char const* what, char const* name) {
  std::fprintf(stderr, "standin: %s: %s\n", name, what);
  std::abort();
}

/// Memory under two addresses: the device's, which no host code may touch, and one for the kernels.
class device_memory {
 public:
  explicit device_memory(std::size_t bytes) : bytes_(bytes + 4096) {
    int const file = memfd_create("standin", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes_)) != 0) fail("no memory", "allocation");
    kernels_ = static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    device_ = static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    close(file);
    all()[device_] = this;
  }
  ~device_memory() {
    all().erase(device_);
    munmap(kernels_, bytes_);
    munmap(device_, bytes_);
  }
  device_memory(device_memory const&) = delete;
  device_memory& operator=(device_memory const&) = delete;

  std::byte* device() const noexcept { return device_; }
  std::byte* kernels() const noexcept { return kernels_; }

  /// Where kernels find what has this address of a device; null if it is none.
  static std::byte* found(void const* address) {
    auto const* const at = static_cast<std::byte const*>(address);
    auto next = all().upper_bound(at);
    if (next == all().begin()) return nullptr;
    device_memory const& in = *(--next)->second;
    return at < in.device_ + in.bytes_ ? in.kernels_ + (at - in.device_) : nullptr;
  }

 private:
  static std::map<std::byte const*, device_memory*>& all() {
    static auto& made = *new std::map<std::byte const*, device_memory*>;  // outlives what exit() destroys
    return made;
  }

  std::size_t bytes_;
  std::byte* kernels_;
  std::byte* device_;
};

std::byte* kernels_place(ggml_tensor const* of) {
  std::byte* const found = device_memory::found(of->data);
  if (found == nullptr) fail("its memory is the host's", of->name);
  return found;
}

/// Work in order, which waits until somebody waits for it.
class late_stream {
 public:
  void add(std::function<void()> work) {
    work_.push_back(std::move(work));
    ++added_;
  }
  std::int64_t added() const noexcept { return added_; }
  void finish(std::int64_t until) {
    while (done_ < until) {
      auto const next = std::move(work_.front());
      work_.pop_front();
      ++done_;
      next();
    }
  }

 private:
  std::deque<std::function<void()>> work_;
  std::int64_t added_ = 0;
  std::int64_t done_ = 0;
};

struct event {
  late_stream* of = nullptr;
  std::int64_t at = 0;
  void wait() const {
    if (of != nullptr && !waits_are_lost) of->finish(at);
  }
};

struct backend {
  late_stream stream;
  ggml_backend_t cpu = nullptr;
};
backend& backend_of(ggml_backend_t of) { return *static_cast<backend*>(of->context); }

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

// What ggml calls. Its sets and gets of tensors do not wait for a backend's work, as ggml-cuda's do not.

ggml_backend_buffer_type_t buffer_type();
ggml_backend_dev_t device();

ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, std::size_t bytes) {
  ggml_backend_buffer_i does{};
  does.free_buffer = [](ggml_backend_buffer_t b) { delete static_cast<device_memory*>(b->context); };
  does.get_base = [](ggml_backend_buffer_t b) -> void* { return static_cast<device_memory*>(b->context)->device(); };
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
    std::byte const* const found = device_memory::found(from->data);
    if (found != nullptr) std::memcpy(kernels_place(to), found, ggml_nbytes(from));
    return found != nullptr;
  };
  does.clear = [](ggml_backend_buffer_t b, std::uint8_t value) {
    std::memset(static_cast<device_memory*>(b->context)->kernels(), value, b->size);
  };
  return ggml_backend_buffer_init(type, does, new device_memory(bytes), bytes);
}

ggml_backend_buffer_type_t buffer_type() {
  static ggml_backend_buffer_type made{};
  made.iface.get_name = [](ggml_backend_buffer_type_t) { return "STANDIN0"; };
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
    mine.stream.add([held, cpu = mine.cpu] { held->run(cpu); });
  }
  return GGML_STATUS_SUCCESS;
}

ggml_backend_t make_backend(ggml_backend_dev_t of, char const*) {
  ggml_backend_i does{};
  does.get_name = [](ggml_backend_t) { return "STANDIN0"; };
  does.free = [](ggml_backend_t b) {
    ggml_backend_free(backend_of(b).cpu);
    delete static_cast<backend*>(b->context);
    delete b;
  };
  does.set_tensor_async = [](ggml_backend_t b, ggml_tensor* t, void const* from, std::size_t at, std::size_t size) {
    auto const* const first = static_cast<std::byte const*>(from);
    backend_of(b).stream.add([to = kernels_place(t) + at, bytes = std::vector<std::byte>(first, first + size)] {
      std::memcpy(to, bytes.data(), bytes.size());
    });
  };
  does.get_tensor_async = [](ggml_backend_t b, ggml_tensor const* t, void* to, std::size_t at, std::size_t size) {
    backend_of(b).stream.add([=, from = kernels_place(t) + at] { std::memcpy(to, from, size); });
  };
  does.synchronize = [](ggml_backend_t b) { event{&backend_of(b).stream, backend_of(b).stream.added()}.wait(); };
  does.graph_compute = compute;
  does.event_record = [](ggml_backend_t b, ggml_backend_event_t e) {
    *static_cast<event*>(e->context) = {&backend_of(b).stream, backend_of(b).stream.added()};
  };
  does.event_wait = [](ggml_backend_t b, ggml_backend_event_t e) {
    event const recorded = *static_cast<event*>(e->context);
    if (recorded.of != &backend_of(b).stream) backend_of(b).stream.add([recorded] { recorded.wait(); });
  };
  auto* const mine = new backend;
  mine->cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
  // As many threads as the tests' contexts have: sums that are split among threads are the same then.
  ggml_backend_reg_t const cpus = ggml_backend_dev_backend_reg(ggml_backend_get_device(mine->cpu));
  void* const found = ggml_backend_reg_get_proc_address(cpus, "ggml_backend_set_n_threads");
  reinterpret_cast<ggml_backend_set_n_threads_t>(found)(mine->cpu, 1);
  static ggml_guid guid{'s', 't', 'a', 'n', 'd', 'i', 'n'};
  return new ggml_backend{&guid, does, of, mine};
}

ggml_backend_reg& registry() {
  static ggml_backend_reg made{};
  made.api_version = GGML_BACKEND_API_VERSION;
  made.iface.get_name = [](ggml_backend_reg_t) { return "STANDIN"; };
  made.iface.get_device_count = [](ggml_backend_reg_t) { return std::size_t{1}; };
  made.iface.get_device = [](ggml_backend_reg_t, std::size_t) { return device(); };
  made.iface.get_proc_address = [](ggml_backend_reg_t, char const*) -> void* { return nullptr; };
  return made;
}

ggml_backend_dev_t device() {
  static ggml_backend_device made = [] {
    ggml_backend_device_i does{};
    does.get_name = [](ggml_backend_dev_t) { return "STANDIN0"; };
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
    does.event_new = [](ggml_backend_dev_t of) { return new ggml_backend_event{of, new event}; };
    does.event_free = [](ggml_backend_dev_t, ggml_backend_event_t e) {
      delete static_cast<event*>(e->context);
      delete e;
    };
    does.event_synchronize = [](ggml_backend_dev_t, ggml_backend_event_t e) { static_cast<event*>(e->context)->wait(); };
    return ggml_backend_device{does, nullptr, nullptr};
  }();
  made.reg = &registry();
  return &made;
}

}  // namespace

void register_standin() {
  static bool const done = (ggml_backend_register(&registry()), true);
  static_cast<void>(done);
}

std::int64_t standin_nodes() { return nodes_computed; }

void lose_waits(bool lost) { waits_are_lost = lost; }

}  // namespace kvpolicy::llama::testing
