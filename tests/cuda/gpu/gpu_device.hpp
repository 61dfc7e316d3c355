// A real GPU behind the same tests as the GPU emulator: rows and tables on the host are copied, and so is what tests share with
// kernels.
#pragma once

#include <cstddef>
#include <new>

#include "kvpolicy/gpu/base/stream_device.hpp"
#include "kvpolicy/gpu/exec/basic_exec.hpp"

namespace kvpolicy_test {

using namespace kvpolicy;

/// Memory of the host that has a copy on the device.
void* allocate_shared(std::size_t bytes);
void free_shared(void* at) noexcept;
/// Where the copy of what allocate_shared() gave lies.
void* copy_of(void const* shared);
void send_shared(gpu::stream on);
void fetch_shared(gpu::stream on);
void fetch(void* to, void const* on_device, std::size_t bytes, gpu::stream on);
gpu::stream test_stream();
/// Another one, for what a step enqueues beside itself.
gpu::stream side_stream();
/// One for all devices of the tests: they share a stream, so one call runs at a time.
gpu::buffer<std::byte> test_workspace();
void wait_for(gpu::stream on);
/// Bytes that are NaN in every floating type and -1 in integers, enqueued.
void poison(void* at, std::int64_t bytes, gpu::stream on);

template <class T>
struct shared_allocator {
  using value_type = T;

  shared_allocator() = default;
  template <class U>
  shared_allocator(shared_allocator<U> const&) noexcept {}
  T* allocate(std::size_t count) { return static_cast<T*>(allocate_shared(count * sizeof(T))); }
  void deallocate(T* at, std::size_t) noexcept { free_shared(at); }
  template <class U>
  bool operator==(shared_allocator<U> const&) const noexcept {
    return true;
  }
};

/// Models gpu::detail::staging_device and gpu::owning_device. Its rows are the host's, so that suites written for the host run
/// on it.
class gpu_device : public gpu::stream_device {
 public:
  using memory = host_memory;

  explicit gpu_device(std::uint64_t = 0) : stream_device(test_stream(), test_workspace()) {}

  /// Poisoned, so that what nobody wrote is seen where it is read.
  template <class T>
  gpu::device_buffer<T> allocate(std::int64_t count) const {
    gpu::device_buffer<T> made = stream_device::allocate<T>(count);
    poison(made.get().data, count * static_cast<std::int64_t>(sizeof(T)), on());
    return made;
  }
  template <class T>
  gpu::buffer<T> scratch(std::int64_t count) {
    gpu::buffer<T> const made = stream_device::scratch<T>(count);
    poison(made.data, count * static_cast<std::int64_t>(sizeof(T)), on());
    return made;
  }

  /// Copies every shared vector to the device: call it before what reads them is enqueued.
  void send() const { send_shared(on()); }
  /// Waits for the device, and copies every shared vector back.
  void wait() const { fetch_shared(on()); }
  /// Elements on the device from `first` on, as they are once all that was enqueued is done.
  template <class T>
  std::vector<std::remove_const_t<T>> read(gpu::buffer<T> from, std::int64_t first, std::int64_t count) const {
    std::vector<std::remove_const_t<T>> made(static_cast<std::size_t>(count));
    fetch(made.data(), from.data + first, made.size() * sizeof(T), on());
    return made;
  }
};

/// What tests fill or read and kernels reach: the test's is the host's, see gpu_device::send() and wait().
template <class T>
using shared_vector = std::vector<T, shared_allocator<T>>;
template <class T>
gpu::buffer<T> on_device(shared_vector<T> const& shared) {
  return {static_cast<T*>(copy_of(shared.data())), std::ssize(shared)};
}

using device_exec = gpu::basic_exec<gpu_device>;

/// The same with rows on the device: what a decoder's prompts run on.
struct engine_device : gpu_device {
  using memory = device_memory;
};
using prompt_exec = gpu::basic_exec<engine_device>;

static_assert(executor<device_exec>);

/// For suites that are instantiated for every executor.
struct on_gpu {
  explicit on_gpu(cache_shape const&) {}
  template <class Work>
  void run(Work work) {
    work(exec);
  }
  device_exec exec;
};

/// Calls `enqueue` once to load its kernels, which a capture may not do, and once to capture it; replays that at every call.
/// The first call's plan must be of nobody: its step is run twice.
class captured_step {
 public:
  captured_step() = default;
  captured_step(captured_step const&) = delete;
  captured_step& operator=(captured_step const&) = delete;
  ~captured_step();

  template <class Enqueue>
  void run(gpu::stream on, Enqueue enqueue) {
    if (step_ == nullptr) {
      enqueue();
      begin(on);
      enqueue();
      end(on);
    }
    replay(on);
  }
  /// Of what was captured, pairs of launches neither of which waits for the other.
  std::int64_t side_by_side() const noexcept { return side_by_side_; }

 private:
  static void begin(gpu::stream on);
  void end(gpu::stream on);
  void replay(gpu::stream on);

  void* step_ = nullptr;
  std::int64_t side_by_side_ = 0;
};

/// Bugs, one for each tool of compute-sanitizer, which must report it.
enum class planted { write_past_the_end, read_before_write, race, divergent_barrier };
void run(planted bug);

}  // namespace kvpolicy_test
