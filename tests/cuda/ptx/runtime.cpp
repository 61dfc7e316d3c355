// The part of the CUDA runtime that the project and its tests call, with kernels executed from their PTX. What is enqueued is
// done when somebody waits for it and not before, so that a wait that is missing shows.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/ptx/block.hpp"
#include "cuda/ptx/memory.hpp"
#include "cuda/ptx/modules.hpp"
#include "cuda/ptx/runtime.hpp"

namespace ptx {

using work = std::function<void()>;

std::optional<std::int64_t> number_in(char const* variable) {
  char const* const text = std::getenv(variable);
  if (text == nullptr) return {};
  return std::strtoll(text, nullptr, 10);
}

/// What was captured, each step with those that it has to wait for.
struct graph {
  struct step {
    work what;
    std::vector<std::size_t> after;
  };
  std::vector<step> steps;

  /// Does the steps in an order that `number` draws among those that are allowed.
  template <class Number>
  void replay(Number number) const {
    std::vector<char> done(steps.size());
    for (std::size_t left = steps.size(); left > 0; --left) {
      std::vector<std::size_t> ready;
      for (std::size_t i = 0; i < steps.size(); ++i) {
        if (done[i] == 0 && std::ranges::all_of(steps[i].after, [&](std::size_t before) { return done[before] != 0; }))
          ready.push_back(i);
      }
      std::size_t const next = ready[number(ready.size())];
      steps[next].what();
      done[next] = 1;
    }
  }
};

struct stream {
  std::deque<work> late;
  std::shared_ptr<graph> captured;  // what it is captured into
  bool began = false;               // the capture, and has to end it
  std::vector<std::size_t> last;    // of the captured steps, those that the next one waits for
  std::uint64_t given = 0;
  std::uint64_t done = 0;
};

struct event {
  stream* on = nullptr;  // that it was last recorded on
  std::uint64_t at = 0;  // what was enqueued there before
  std::shared_ptr<graph> captured;
  std::vector<std::size_t> last;
};

class runtime {
 public:
  static runtime& instance() {
    static runtime& one = *new runtime;
    return one;
  }

  /// Does what was enqueued, the first `until` of it. @return the first fault of the process, from then on
  cudaError_t drain(stream& on, std::uint64_t until = UINT64_MAX) {
    while (!on.late.empty() && on.done < until && result_ == cudaSuccess) {
      ++on.done;
      work const next = std::move(on.late.front());
      on.late.pop_front();
      try {
        next();
      } catch (fault const& wrong) {
        std::fprintf(stderr, "ptx: %s\n", wrong.what());
        result_ = cudaErrorLaunchFailure;
      }
    }
    if (result_ != cudaSuccess) on.late.clear();
    return result_;
  }
  cudaError_t drain() {
    for (auto& [handle, on] : streams_)
      if (drain(on) != cudaSuccess) break;
    return result_;
  }
  cudaError_t enqueue(cudaStream_t handle, work what) {
    stream& on = at(handle);
    if (on.captured == nullptr) {
      on.late.push_back(std::move(what));
      ++on.given;
      return result_;
    }
    on.captured->steps.push_back({std::move(what), std::exchange(on.last, {on.captured->steps.size()})});
    return result_;
  }
  /// The capture has ended: nobody takes part any more.
  void leave(std::shared_ptr<graph> const& captured) {
    for (auto& [handle, on] : streams_) {
      if (on.captured == captured) on.captured = nullptr, on.began = false, on.last.clear();
    }
  }
  /// Whether a stream has steps that the last ones of `ending` do not wait for.
  bool unjoined(stream const& ending) const {
    std::vector<std::size_t> open = ending.last;
    std::vector<char> waited(ending.captured->steps.size());
    while (!open.empty()) {
      std::size_t const step = open.back();
      open.pop_back();
      if (std::exchange(waited[step], 1) != 0) continue;
      auto const& after = ending.captured->steps[step].after;
      open.insert(open.end(), after.begin(), after.end());
    }
    return std::ranges::count(waited, 0) > 0;
  }
  /// A number below `most`, by the seed.
  std::size_t draw(std::size_t most) { return std::uniform_int_distribution<std::size_t>(0, most - 1)(random_); }

  stream& at(cudaStream_t handle) { return streams_[handle]; }
  bool is_capturing() const {
    return std::ranges::any_of(streams_, [](auto const& each) { return each.second.captured != nullptr; });
  }
  cudaError_t result() const { return result_; }

  void execute(launch const& what) { on_.execute(what, counted_[what.code->name]); }
  std::map<std::string, counts> const& counted() const { return counted_; }
  std::vector<dim3> configured;  // grid and block of a launch that is on its way
  cudaStream_t configured_stream = nullptr;
  cudaError_t refused = cudaSuccess;  // by a call that nobody asked about since

 private:
  runtime() : on_(seed(), std::getenv("KVPOLICY_PTX_COUNTS") != nullptr) {}
  static std::optional<std::uint64_t> seed() {
    auto const given = number_in("KVPOLICY_PTX_SEED");
    if (!given) return {};
    return static_cast<std::uint64_t>(*given);
  }

  processor on_;
  std::mt19937_64 random_{seed().value_or(1)};
  std::map<cudaStream_t, stream> streams_;
  std::map<std::string, counts> counted_;
  cudaError_t result_ = cudaSuccess;
};

std::map<std::string, counts> const& counts_by_kernel() {
  runtime::instance().drain();
  return runtime::instance().counted();
}

namespace {

runtime& here() { return runtime::instance(); }

cudaError_t refuse(std::string const& why, cudaError_t with) {
  std::fprintf(stderr, "ptx: %s\n", why.c_str());
  return here().refused = with;
}

cudaError_t enqueue_launch(void const* function, dim3 grid, dim3 block, void** arguments, std::size_t shared, cudaStream_t on) {
  launch what{nullptr, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, {}};
  try {
    what.code = &kernel_of(function);
  } catch (std::invalid_argument const& wrong) {
    return refuse(wrong.what(), cudaErrorNoKernelImageForDevice);
  }
  if (grid.x * grid.y * grid.z == 0 || grid.y > 65535 || grid.z > 65535 || block.x * block.y * block.z - 1 >= 1024)
    return refuse("a launch of " + what.code->name + " with a grid or a block that no GPU runs", cudaErrorInvalidConfiguration);
  if (shared != 0) return refuse("dynamic shared memory is not executed here", cudaErrorNotSupported);
  for (kernel::parameter const& each : what.code->parameters) {
    what.parameters.resize(static_cast<std::size_t>(each.at + each.bytes));
    std::memcpy(what.parameters.data() + each.at, *arguments++, static_cast<std::size_t>(each.bytes));
  }
  return here().enqueue(on, [what] { here().execute(what); });
}

/// The bytes of a copy on this side.
std::byte* side(void const* address, std::size_t bytes) {
  void* const found = memory::device().host_address(address, bytes);
  if (found == nullptr) throw fault("a copy or a fill of " + std::to_string(bytes) + " bytes goes beyond an allocation");
  return static_cast<std::byte*>(found);
}

void note_write(void const* address, std::size_t bytes) {
  auto const at = reinterpret_cast<std::uint64_t>(address);
  memory::device().note_write(memory::device().find(at), at, bytes);
}

/// Throws where a copy would read what was never written on the device.
void expect_written(void const* address, std::size_t bytes) {
  auto const at = reinterpret_cast<std::uint64_t>(address);
  if (!memory::device().is_written(memory::device().find(at), at, bytes))
    throw fault("a copy of " + std::to_string(bytes) + " bytes reads some that were never written");
}

/// Whether a copy may read or write it later: the host's own memory that nobody registered may be gone by then.
bool is_known(void const* address) { return memory::device().find(reinterpret_cast<std::uint64_t>(address)).end != 0; }

/// Copies `rows` rows. From memory of the host that is not registered the bytes are taken now; into such memory the copy is
/// done now.
cudaError_t copy(void* to, std::size_t to_pitch, void const* from, std::size_t from_pitch, std::size_t bytes, std::size_t rows,
                 cudaStream_t on) {
  if (bytes == 0 || rows == 0) return here().result();
  auto const move = [=](std::byte const* source) {
    std::byte* const target = side(to, (rows - 1) * to_pitch + bytes);
    for (std::size_t row = 0; row < rows; ++row) {
      std::memmove(target + row * to_pitch, source + row * from_pitch, bytes);
      note_write(static_cast<std::byte*>(to) + row * to_pitch, bytes);
    }
  };
  std::size_t const span = (rows - 1) * from_pitch + bytes;
  bool const captures = here().at(on).captured != nullptr;
  if (!is_known(from) && !captures) {
    auto const* const now = static_cast<std::byte const*>(from);
    return here().enqueue(on, [move, taken = std::vector<std::byte>(now, now + span)] { move(taken.data()); });
  }
  cudaError_t const result = here().enqueue(on, [=] {
    for (std::size_t row = 0; row < rows; ++row) expect_written(static_cast<std::byte const*>(from) + row * from_pitch, bytes);
    move(side(from, span));
  });
  return is_known(to) || captures ? result : here().drain(here().at(on));
}

cudaError_t allocate(void** at, std::size_t bytes, owner of) {
  if (here().is_capturing()) return refuse("an allocation while a stream is captured", cudaErrorStreamCaptureUnsupported);
  *at = memory::device().allocate(bytes, of);
  return *at == nullptr ? cudaErrorMemoryAllocation : here().result();
}
cudaError_t release(void* at) {
  if (at == nullptr) return cudaSuccess;
  if (here().is_capturing()) return refuse("memory is freed while a stream is captured", cudaErrorStreamCaptureUnsupported);
  cudaError_t const result = here().drain();
  return memory::device().release(at) ? result : refuse("nothing was allocated at what is freed", cudaErrorInvalidValue);
}

/// Of the device that the kernels were compiled for: 90 of sm_90.
int architecture() {
  std::string_view const text = all_texts().front();
  return std::atoi(text.data() + text.find(".target sm_") + 11);
}

template <class T>
cudaError_t end(void* gone) {
  delete static_cast<T*>(gone);
  return cudaSuccess;
}

}  // namespace

}  // namespace ptx

using ptx::here;

extern "C" {

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t, CUstream_st* on) {
  here().configured = {grid, block};
  here().configured_stream = on;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* on) {
  *grid = here().configured.at(0), *block = here().configured.at(1), *shared = 0;
  *static_cast<cudaStream_t*>(on) = here().configured_stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, void const* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                               cudaStream_t on) {
  return ptx::enqueue_launch(kernel, grid, block, arguments, shared, on);
}
cudaError_t cudaLaunchKernel(void const* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t on) {
  return ptx::enqueue_launch(function, grid, block, arguments, shared, on);
}

cudaError_t cudaMalloc(void** at, std::size_t bytes) { return ptx::allocate(at, bytes, ptx::owner::device); }
cudaError_t cudaMallocManaged(void** at, std::size_t bytes, unsigned) { return ptx::allocate(at, bytes, ptx::owner::managed); }
cudaError_t cudaHostAlloc(void** at, std::size_t bytes, unsigned) { return ptx::allocate(at, bytes, ptx::owner::managed); }
cudaError_t cudaFree(void* at) { return ptx::release(at); }
cudaError_t cudaFreeHost(void* at) { return ptx::release(at); }
cudaError_t cudaHostRegister(void* at, std::size_t bytes, unsigned) {
  return ptx::memory::device().add_host(at, bytes) ? here().result() : cudaErrorHostMemoryAlreadyRegistered;
}
cudaError_t cudaHostUnregister(void* at) {
  cudaError_t const result = here().drain();
  return ptx::memory::device().remove_host(at) ? result : cudaErrorHostMemoryNotRegistered;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, void const* at) {
  ptx::range const in = ptx::memory::device().find(reinterpret_cast<std::uint64_t>(at));
  *found = {};
  if (in.end == 0) return cudaSuccess;
  found->type = in.of == ptx::owner::device    ? cudaMemoryTypeDevice
                : in.of == ptx::owner::managed ? cudaMemoryTypeManaged
                                               : cudaMemoryTypeHost;
  found->devicePointer = const_cast<void*>(at);
  if (in.of != ptx::owner::device) found->hostPointer = const_cast<void*>(at);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t on) {
  return ptx::copy(to, bytes, from, bytes, bytes, 1, on);
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, void const* from, std::size_t from_pitch, std::size_t bytes,
                              std::size_t rows, cudaMemcpyKind, cudaStream_t on) {
  return ptx::copy(to, to_pitch, from, from_pitch, bytes, rows, on);
}
cudaError_t cudaMemcpy(void* to, void const* from, std::size_t bytes, cudaMemcpyKind) {
  here().drain();
  ptx::copy(to, bytes, from, bytes, bytes, 1, nullptr);
  return here().drain();
}
cudaError_t cudaLaunchHostFunc(cudaStream_t on, cudaHostFn_t what, void* with) {
  return here().enqueue(on, [=] { what(with); });
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t on) {
  return here().enqueue(on, [=] {
    std::memset(ptx::side(to, bytes), value, bytes);
    ptx::note_write(to, bytes);
  });
}

cudaError_t cudaStreamCreate(cudaStream_t* made) {
  *made = reinterpret_cast<cudaStream_t>(new char);
  here().at(*made);
  return here().result();
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned) { return cudaStreamCreate(made); }
cudaError_t cudaStreamDestroy(cudaStream_t gone) { return here().drain(here().at(gone)); }
cudaError_t cudaStreamSynchronize(cudaStream_t on) {
  if (here().at(on).captured) return ptx::refuse("a wait for a stream that is captured", cudaErrorStreamCaptureUnsupported);
  return here().drain(here().at(on));
}
cudaError_t cudaStreamBeginCapture(cudaStream_t on, cudaStreamCaptureMode) {
  ptx::stream& mine = here().at(on);
  if (mine.captured) return ptx::refuse("a capture begins on a stream that is captured", cudaErrorIllegalState);
  mine.captured = std::make_shared<ptx::graph>();
  mine.began = true;
  return here().result();
}
cudaError_t cudaStreamEndCapture(cudaStream_t on, cudaGraph_t* made) {
  std::shared_ptr<ptx::graph> const captured = here().at(on).captured;
  if (captured == nullptr || !here().at(on).began) return cudaErrorIllegalState;
  bool const lost = here().unjoined(here().at(on));
  here().leave(captured);
  if (lost) return ptx::refuse("a captured stream was not joined", cudaErrorStreamCaptureUnjoined);
  *made = reinterpret_cast<cudaGraph_t>(new ptx::graph(*captured));
  return here().result();
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t from, unsigned long long) {
  *made = reinterpret_cast<cudaGraphExec_t>(new ptx::graph(*reinterpret_cast<ptx::graph*>(from)));
  return here().result();
}
/// A step of a graph stands for its node.
cudaError_t cudaGraphGetNodes(cudaGraph_t of, cudaGraphNode_t* nodes, std::size_t* count) {
  ptx::graph const& all = *reinterpret_cast<ptx::graph*>(of);
  for (std::size_t i = 0; nodes != nullptr && i < std::min(*count, all.steps.size()); ++i)
    nodes[i] = reinterpret_cast<cudaGraphNode_t>(i + 1);
  *count = all.steps.size();
  return here().result();
}
cudaError_t cudaGraphGetEdges(cudaGraph_t of, cudaGraphNode_t* from, cudaGraphNode_t* to, cudaGraphEdgeData*,
                              std::size_t* count) {
  ptx::graph const& all = *reinterpret_cast<ptx::graph*>(of);
  std::size_t edges = 0;
  for (std::size_t i = 0; i < all.steps.size(); ++i) {
    for (std::size_t const before : all.steps[i].after) {
      if (from != nullptr && edges < *count) {
        from[edges] = reinterpret_cast<cudaGraphNode_t>(before + 1);
        to[edges] = reinterpret_cast<cudaGraphNode_t>(i + 1);
      }
      ++edges;
    }
  }
  *count = edges;
  return here().result();
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t of, cudaStream_t on) {
  return here().enqueue(
      on, [all = *reinterpret_cast<ptx::graph*>(of)] { all.replay([](std::size_t most) { return here().draw(most); }); });
}
cudaError_t cudaGraphDestroy(cudaGraph_t gone) { return ptx::end<ptx::graph>(gone); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t gone) { return ptx::end<ptx::graph>(gone); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  *made = reinterpret_cast<cudaEvent_t>(new ptx::event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t of, cudaStream_t on) {
  ptx::stream& mine = here().at(on);
  *reinterpret_cast<ptx::event*>(of) = {&mine, mine.given, mine.captured, mine.last};
  return here().result();
}
cudaError_t cudaEventSynchronize(cudaEvent_t of) {
  ptx::event const& mark = *reinterpret_cast<ptx::event*>(of);
  return mark.on == nullptr ? here().result() : here().drain(*mark.on, mark.at);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t of, unsigned) {
  ptx::event const mark = *reinterpret_cast<ptx::event*>(of);
  ptx::stream& mine = here().at(on);
  if (mark.captured != nullptr) {
    if (mine.captured != nullptr && mine.captured != mark.captured)
      return ptx::refuse("a wait would merge two captures", cudaErrorStreamCaptureMerge);
    mine.captured = mark.captured;  // it takes part from here on
    mine.last.insert(mine.last.end(), mark.last.begin(), mark.last.end());
    return here().result();
  }
  if (mine.captured != nullptr)
    return ptx::refuse("a captured stream waits for work that is not captured", cudaErrorStreamCaptureIsolation);
  if (mark.on == nullptr || mark.on == &mine) return here().result();
  return here().enqueue(on, [mark] { here().drain(*mark.on, mark.at); });
}
cudaError_t cudaEventDestroy(cudaEvent_t gone) { return ptx::end<ptx::event>(gone); }

cudaError_t cudaGetDeviceCount(int* devices) { return *devices = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr of, int) {
  switch (of) {
    case cudaDevAttrMultiProcessorCount:
      return *value = static_cast<int>(ptx::number_in("KVPOLICY_PTX_PROCESSORS").value_or(132)), cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      return *value = ptx::architecture() / 10, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      return *value = ptx::architecture() % 10, cudaSuccess;
    default:
      return ptx::refuse("this attribute of the device is not known here", cudaErrorNotSupported);
  }
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, void const*) {
  *found = {};
  found->maxThreadsPerBlock = 1024;
  found->ptxVersion = found->binaryVersion = ptx::architecture();
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void const*, int, std::size_t) {
  *blocks = static_cast<int>(ptx::number_in("KVPOLICY_PTX_OCCUPANCY").value_or(2));  // PTX says nothing of registers
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void const* of, int threads, std::size_t shared,
                                                                   unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, of, threads, shared);
}
cudaError_t cudaPeekAtLastError() { return here().result() != cudaSuccess ? here().result() : here().refused; }
cudaError_t cudaGetLastError() {
  cudaError_t const found = cudaPeekAtLastError();
  here().refused = cudaSuccess;
  return found;
}
char const* cudaGetErrorName(cudaError_t of) { return cudaGetErrorString(of); }
char const* cudaGetErrorString(cudaError_t of) {
  if (of == cudaErrorMemoryAllocation) return "out of memory";
  return of == cudaSuccess ? "no error" : "a kernel failed, or this can't be done here; a line 'ptx:' says what";
}

}  // extern "C"
