// Memory on a GPU, and host memory that it reaches; and the errors of both. Including this needs no CUDA header.
#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "kvpolicy/error.hpp"
#include "kvpolicy/gpu/base/block.hpp"

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

/// Where device memory comes from: CUDA's own, or an engine's pool.
class device_allocator {
 public:
  virtual ~device_allocator() = default;
  /// Gives memory that work on a stream may use.
  /// @param bytes  how many, more than 0
  /// @param on  the stream
  /// @return the memory, aligned to 256 bytes
  /// @throws device_memory_exceeded if there is too little
  virtual void* allocate(std::int64_t bytes, stream on) = 0;
  /// Takes memory back. Work on the stream may still use it: a pool hands it out again in the stream's order.
  /// @param data, bytes, on  as allocate() gave and got them
  virtual void release(void* data, std::int64_t bytes, stream on) noexcept = 0;
};

/// Returns CUDA's own: cudaMalloc and cudaFree, which wait for the device.
device_allocator& cuda_allocator() noexcept;

/// Owns device memory. Movable.
class device_array {
 public:
  device_array() = default;
  /// Allocates memory, uninitialised.
  /// @param bytes  how many
  /// @param on  the stream that uses it
  /// @param from  where it comes from; must outlive this
  /// @throws device_memory_exceeded if the device has too little memory
  /// @throws device_error if CUDA refuses for another reason
  explicit device_array(std::int64_t bytes, stream on = nullptr, device_allocator& from = cuda_allocator());
  device_array(device_array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        stream_(other.stream_),
        from_(other.from_) {}
  device_array& operator=(device_array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(stream_, other.stream_);
    std::swap(from_, other.from_);
    return *this;
  }
  ~device_array();

  std::byte* data() const noexcept { return data_; }
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  stream stream_ = nullptr;
  device_allocator* from_ = nullptr;
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

/// A mark in a stream, which others can wait for. Movable.
class stream_event {
 public:
  /// @throws device_error if CUDA refuses
  stream_event();
  stream_event(stream_event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  stream_event& operator=(stream_event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~stream_event();

  void* get() const noexcept { return event_; }

 private:
  void* event_ = nullptr;  ///< a cudaEvent_t
};

/// Pinned host memory through which copies to a device go, so that no copy waits for work that was enqueued before it.
/// It has two halves: one is filled while copies from the other are under way. Movable.
class upload_ring {
 public:
  /// Allocates 2 MiB of pinned host memory.
  /// @throws device_error if CUDA refuses
  upload_ring();
  upload_ring(upload_ring&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), done_(std::move(other.done_)), half_(other.half_), used_(other.used_) {}
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

  std::byte* data_ = nullptr;
  std::array<stream_event, 2> done_;  ///< when the copies from each half are done
  int half_ = 0;
  std::int64_t used_ = 0;  ///< bytes of this half
};

/// Owns elements in device memory.
template <class T>
class device_buffer {
 public:
  /// Allocates elements, uninitialised.
  /// @param count  how many
  /// @param on, from  as device_array takes them
  /// @throws device_error as device_array does
  explicit device_buffer(std::int64_t count, stream on = nullptr, device_allocator& from = cuda_allocator())
      : storage_(count * static_cast<std::int64_t>(sizeof(T)), on, from), count_(count) {}
  buffer<T> get() const noexcept { return {reinterpret_cast<T*>(storage_.data()), count_}; }

 private:
  device_array storage_;
  std::int64_t count_;
};

}  // namespace kvpolicy::gpu
