// A real GPU behind the same tests as the GPU emulator: rows and tables on the host are copied, what tests share with kernels
// is managed memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>

#include "kvpolicy/gpu/basic_exec.hpp"
#include "kvpolicy/gpu/stream_device.hpp"

namespace kvpolicy_test {

using namespace kvpolicy;

void* allocate_managed(std::size_t bytes);
void free_managed(void* at) noexcept;
gpu::stream test_stream();
/// One for all devices of the tests: they share a stream, so one call runs at a time.
gpu::buffer<std::byte> test_workspace();
void wait_for(gpu::stream on);
/// Bytes that are NaN in every floating type and -1 in integers, enqueued.
void poison(void* at, std::int64_t bytes, gpu::stream on);

template <class T>
struct managed_allocator {
  using value_type = T;

  managed_allocator() = default;
  template <class U>
  managed_allocator(managed_allocator<U> const&) noexcept {}
  T* allocate(std::size_t count) { return static_cast<T*>(allocate_managed(count * sizeof(T))); }
  void deallocate(T* at, std::size_t) noexcept { free_managed(at); }
  template <class U>
  bool operator==(managed_allocator<U> const&) const noexcept {
    return true;
  }
};

/// Models gpu::staging_device and gpu::owning_device. Its rows are the host's, so that suites written for the host run on it.
class gpu_device : public gpu::stream_device {
 public:
  using memory = host_memory;

  explicit gpu_device(std::uint64_t = 0) : stream_device(test_stream(), test_workspace()) {}

  /// Managed, so that a test can look into it after wait(); poisoned, so that what nobody wrote is seen where it is read.
  template <class T>
  struct owned {
    std::vector<T, managed_allocator<T>> storage;
    gpu::buffer<T> get() const { return {const_cast<T*>(storage.data()), std::ssize(storage)}; }
  };
  template <class T>
  owned<T> allocate(std::int64_t count) const {
    owned<T> made{std::vector<T, managed_allocator<T>>(static_cast<std::size_t>(count))};
    std::memset(static_cast<void*>(made.storage.data()), 0xff, made.storage.size() * sizeof(T));
    return made;
  }
  template <class T>
  gpu::buffer<T> scratch(std::int64_t count) {
    gpu::buffer<T> const made = stream_device::scratch<T>(count);
    poison(made.data, count * static_cast<std::int64_t>(sizeof(T)), on());
    return made;
  }
  void wait() const { wait_for(on()); }
};

using device_exec = gpu::basic_exec<gpu_device>;

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

 private:
  static void begin(gpu::stream on);
  void end(gpu::stream on);
  void replay(gpu::stream on);

  void* step_ = nullptr;
};

/// Bugs, one for each tool of compute-sanitizer, which must report it.
enum class planted { write_past_the_end, read_before_write, race, divergent_barrier };
void run(planted bug);

}  // namespace kvpolicy_test
