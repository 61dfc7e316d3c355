// A GPU behind a stream, with memory to work in. Compiled: link kvpolicy::gpu. Including this needs no CUDA header.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/view.hpp"

struct CUstream_st;  // cudaStream_t points to it

namespace kvpolicy::gpu {

/// A CUDA stream: the same type as cudaStream_t.
using stream = CUstream_st*;

/// A launch, allocation or copy that the device refused. Names it, and says what CUDA said.
struct device_error : error {
  using error::error;
};

/// The device has too little memory. What was allocated before stays; ask for less.
struct device_memory_exceeded : device_error {
  using device_error::device_error;
};

/// The workspace is too small. Names its size and what was wanted.
struct workspace_exceeded : error {
  using error::error;
};

/// Owns device memory. Movable.
class device_array {
 public:
  device_array() = default;
  /// Allocates memory, uninitialised.
  /// @param bytes  how many
  /// @throws device_memory_exceeded if the device has too little memory
  /// @throws device_error if CUDA refuses for another reason
  explicit device_array(std::int64_t bytes);
  device_array(device_array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  device_array& operator=(device_array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~device_array();

  std::byte* data() const noexcept { return data_; }
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Pins host memory while it lives, so that kernels read and write it in place. Movable.
/// It pins in pieces: CUDA may refuse one registration of hundreds of GiB where it accepts many.
class pinned_memory {
 public:
  /// Pins memory. An exception leaves nothing pinned.
  /// @param data  the memory; must outlive this object
  /// @param bytes  how many
  /// @param piece  bytes of a registration
  /// @throws device_error if CUDA refuses
  pinned_memory(void* data, std::int64_t bytes, std::int64_t piece = std::int64_t{1} << 30);
  pinned_memory(pinned_memory&&) noexcept = default;
  pinned_memory& operator=(pinned_memory&& other) noexcept {
    std::swap(pieces_, other.pieces_);
    return *this;
  }
  ~pinned_memory();

 private:
  std::vector<void*> pieces_;
};

/// Pinned host memory through which copies to a device go, so that no copy waits for work that was enqueued before it.
/// It has two halves: one is filled while copies from the other are under way. Movable.
class upload_ring {
 public:
  /// Allocates 2 MiB of pinned host memory.
  /// @throws device_error if CUDA refuses
  upload_ring();
  upload_ring(upload_ring&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        done_(std::exchange(other.done_, {})),
        half_(other.half_),
        used_(other.used_) {}
  upload_ring& operator=(upload_ring&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(done_, other.done_);
    std::swap(half_, other.half_);
    std::swap(used_, other.used_);
    return *this;
  }
  ~upload_ring();

  /// Enqueues a copy. The host's memory may change once this returns.
  /// Waits only if both halves are full of copies that are not done.
  /// @param to  on the device
  /// @param from  on the host
  /// @param bytes  how many
  /// @param on  the stream
  /// @throws device_error if CUDA refuses
  void copy(void* to, void const* from, std::int64_t bytes, stream on);

 private:
  static constexpr std::int64_t half_bytes = std::int64_t{1} << 20;

  void release() noexcept;

  std::byte* data_ = nullptr;
  std::array<void*, 2> done_{};  ///< events: when the copies from each half are done
  int half_ = 0;
  std::int64_t used_ = 0;  ///< bytes of this half
};

/// Owns elements in device memory.
template <class T>
class device_buffer {
 public:
  /// Allocates elements, uninitialised.
  /// @param count  how many
  /// @throws device_error as device_array does
  explicit device_buffer(std::int64_t count) : storage_(count * static_cast<std::int64_t>(sizeof(T))), count_(count) {}
  buffer<T> get() const noexcept { return {reinterpret_cast<T*>(storage_.data()), count_}; }

 private:
  device_array storage_;
  std::int64_t count_;
};

/// Runs kernels on a stream, in order. Models staging_device and owning_device. Not thread-safe.
class stream_device {
 public:
  using memory = device_memory;

  /// Allocates the workspace, once, on the current device.
  /// @param on  the stream
  /// @param workspace_bytes  scratch for one call; see docs/cuda.md for policies that need more than the default
  /// @throws device_error if CUDA refuses
  explicit stream_device(stream on, std::int64_t workspace_bytes = std::int64_t{64} << 20);

  /// Uses the engine's memory as its workspace.
  /// @param on,workspace  the stream; device memory, aligned to 256 bytes, that outlives this and that enqueued work uses alone
  /// @throws device_error if the workspace is not aligned, or CUDA refuses
  stream_device(stream on, buffer<std::byte> workspace);

  stream on() const noexcept { return stream_; }
  /// Uses another stream from now on.
  /// @param other  the stream; order what is enqueued there after what was enqueued before, because scratch is shared
  void on(stream other) noexcept { stream_ = other; }

  /// Enqueues a body: one of kernel/, or your own from a .cu that includes kvpolicy/gpu/kvpolicy.cuh.
  /// @param grid  its blocks; an empty grid launches nothing
  /// @param arguments  its arguments
  /// @throws device_error if CUDA refuses
  template <class Body>
  void launch(grid_size grid, typename Body::arguments const& arguments);

  /// Takes uninitialised device memory from the workspace, until the current scratch_scope ends.
  /// @param count  elements
  /// @return the memory
  /// @throws workspace_exceeded if the workspace is too small
  template <class T>
  buffer<T> scratch(std::int64_t count) {
    return {static_cast<T*>(take(count * static_cast<std::int64_t>(sizeof(T)))), count};
  }
  buffer<std::int32_t> counters() const noexcept { return counters_.get(); }
  std::int64_t scratch_used() const noexcept { return used_; }
  void release_scratch(std::int64_t used) noexcept { used_ = used; }
  /// Returns how many blocks of a body the device runs at once.
  template <class Body>
  std::int64_t blocks_wanted() const;

  /// Allocates device memory.
  /// @param count  elements
  /// @return its owner
  /// @throws device_error as device_array does
  template <class T>
  device_buffer<T> allocate(std::int64_t count) const {
    return device_buffer<T>(count);
  }
  /// Enqueues a copy from the host, whose memory may change once this returns.
  /// @param to,from,count  the destination, the source, and its elements
  /// @throws device_error if CUDA refuses
  template <class T>
  void upload(buffer<T> to, T const* from, std::int64_t count) {
    copy_to_device(to.data, from, count * static_cast<std::int64_t>(sizeof(T)));
  }

  /// Begins the staging of a call.
  void begin() noexcept { copies_.clear(); }
  /// Makes input reachable: copies it to the workspace, unless kernels can read it where it lies.
  /// @param from  the input
  /// @param count  elements
  /// @return what kernels read
  /// @throws workspace_exceeded if the workspace is too small
  template <class T>
  buffer<T const> in(T const* from, std::int64_t count) {
    return {static_cast<T const*>(reachable(from, count * static_cast<std::int64_t>(sizeof(T)))), count};
  }
  /// Makes output reachable: gives it a place in the workspace, unless kernels can write it where it lies.
  /// @param to  the output
  /// @param rows,columns,stride  its rows, their elements, and elements from one row to the next
  /// @param keep  whether kernels read it too
  /// @return what kernels write; finish() copies it to `to`
  /// @throws workspace_exceeded if the workspace is too small
  template <class T>
  buffer<T> out(T* to, std::int64_t rows, std::int64_t columns, std::int64_t stride, bool keep) {
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    return {static_cast<T*>(writable(to, rows, columns * size, stride * size, keep)), (rows - 1) * stride + columns};
  }
  /// Copies outputs to the host, and waits for the device.
  /// @throws device_error if CUDA refuses, or a kernel failed
  void finish();

 private:
  struct copy {
    void* host;
    void const* device;
    std::int64_t rows;
    std::int64_t width;
    std::int64_t pitch;
  };

  stream_device(stream on, device_array workspace);
  void* take(std::int64_t bytes);
  std::int64_t blocks_of(char const* kernel, void const* code, int threads) const;
  void copy_to_device(void* to, void const* from, std::int64_t bytes);
  void const* reachable(void const* from, std::int64_t bytes);
  void* writable(void* to, std::int64_t rows, std::int64_t width, std::int64_t pitch, bool keep);

  stream stream_;
  device_array own_workspace_;
  buffer<std::byte> workspace_;
  device_buffer<std::int32_t> counters_;
  upload_ring uploads_;
  std::int64_t used_ = 0;
  std::int64_t processors_ = 0;
  mutable std::vector<std::pair<void const*, std::int64_t>> blocks_of_;  ///< of each kernel, once asked
  std::vector<copy> copies_;
};

}  // namespace kvpolicy::gpu
