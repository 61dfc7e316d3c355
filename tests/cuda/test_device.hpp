// The device that decoders are tested on: the GPU emulator, or, in the programs of tests/cuda/gpu, a GPU.
#pragma once

#if defined(KVPOLICY_TEST_GPU)
#include "cuda/gpu/gpu_device.hpp"
#else
#include <optional>

#include "cuda/emulated.hpp"
#endif

namespace kvpolicy_test {

#if defined(KVPOLICY_TEST_GPU)
using test_device = gpu_device;
using test_exec = device_exec;
inline constexpr bool on_real_gpu = true;
#else
using test_device = emulated_device;
using test_exec = emulated_exec;
using prompt_exec = emulated_exec;
template <class T>
using shared_vector = std::vector<T>;
template <class T>
gpu::buffer<T> on_device(shared_vector<T> const& shared) {
  return {const_cast<T*>(shared.data()), std::ssize(shared)};
}
inline constexpr bool on_real_gpu = false;
inline int side_stream() { return 1; }

/// Captures the first step that it is given, and replays it at every call.
class captured_step {
 public:
  template <class Enqueue>
  void run(emulated_device& on, Enqueue enqueue) {
    if (!captured_) captured_ = on.capture(enqueue);
    on.replay(*captured_);
  }
  std::int64_t side_by_side() const noexcept { return -1; }  // launches take their turns

 private:
  std::optional<emulated_device::graph> captured_;
};
#endif

}  // namespace kvpolicy_test
