// A GPU behind a stream, with memory to work in. Compiled: link kvpolicy::gpu. No CUDA header is needed to include this.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvpolicy/gpu/launch/device.hpp"
#include "kvpolicy/view.hpp"

struct CUstream_st;  // cudaStream_t points to it

namespace kvpolicy::gpu {

using stream = CUstream_st*;

/// A launch, an allocation or a copy that the device refused. Names what it was and what CUDA said.
struct device_error : error {
  using error::error;
};

/// Memory that the device has not. What was there stays; ask for less.
struct device_memory_exceeded : device_error {
  using device_error::device_error;
};

/// Scratch did not suffice: names what is there and what was wanted.
struct workspace_exceeded : error {
  using error::error;
};

/// Device memory, owned. Movable.
class device_array {
 public:
  device_array() = default;
  explicit device_array(std::int64_t bytes);  ///< not initialised; throws device_memory_exceeded, device_error
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

/// Host memory that kernels read and write in place, pinned while this lives, in pieces: one registration of hundreds of GiB
/// may be refused where many are not. Movable. Throws device_error; what was pinned of it is released.
class pinned_memory {
 public:
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

/// Pinned host memory that copies to a device are made from, so that none waits for what is enqueued before it: two halves, of
/// which one is filled while copies from the other are on their way. Movable.
class upload_ring {
 public:
  upload_ring();  ///< throws device_error
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

  /// Enqueues a copy; the host's memory may change once this returns. Waits where both halves are full of copies that are not
  /// done. Throws device_error.
  void copy(void* to, void const* from, std::int64_t bytes, stream on);

 private:
  static constexpr std::int64_t half_bytes = std::int64_t{1} << 20;

  void release() noexcept;

  std::byte* data_ = nullptr;
  std::array<void*, 2> done_{};  ///< events: the copies from each half
  int half_ = 0;
  std::int64_t used_ = 0;  ///< bytes of this half
};

/// As many elements, owned.
template <class T>
class device_buffer {
 public:
  explicit device_buffer(std::int64_t count) : storage_(count * static_cast<std::int64_t>(sizeof(T))), count_(count) {}
  buffer<T> get() const noexcept { return {reinterpret_cast<T*>(storage_.data()), count_}; }

 private:
  device_array storage_;
  std::int64_t count_;
};

/// Models staging_device and owning_device. Kernels go to `stream`, in order; the workspace is this object's alone. Not
/// thread-safe.
class stream_device {
 public:
  using memory = device_memory;

  /// Allocates the workspace once, on the current device.
  explicit stream_device(stream on, std::int64_t workspace_bytes = std::int64_t{64} << 20);

  stream on() const noexcept { return stream_; }
  /// From here on another stream. What was enqueued before must be ordered before what is enqueued there: scratch is shared.
  void on(stream other) noexcept { stream_ = other; }

  /// Enqueues a body of kernel/; a body of your own from a .cu that includes kvpolicy/gpu/kvpolicy.cuh.
  template <class Body>
  void launch(grid_size grid, typename Body::arguments const& arguments);

  template <class T>
  buffer<T> scratch(std::int64_t count) {
    return {static_cast<T*>(take(count * static_cast<std::int64_t>(sizeof(T)))), count};
  }
  buffer<std::int32_t> counters() const noexcept { return counters_.get(); }
  std::int64_t scratch_used() const noexcept { return used_; }
  void release_scratch(std::int64_t used) noexcept { used_ = used; }
  /// Blocks of a body that the device runs at once.
  template <class Body>
  std::int64_t blocks_wanted() const;

  template <class T>
  device_buffer<T> allocate(std::int64_t count) const {
    return device_buffer<T>(count);
  }
  /// The host's memory may change once this returns.
  template <class T>
  void upload(buffer<T> to, T const* from, std::int64_t count) {
    copy_to_device(to.data, from, count * static_cast<std::int64_t>(sizeof(T)));
  }

  void begin() noexcept { copies_.clear(); }
  template <class T>
  buffer<T const> in(T const* from, std::int64_t count) {
    return {static_cast<T const*>(reachable(from, count * static_cast<std::int64_t>(sizeof(T)))), count};
  }
  template <class T>
  buffer<T> out(T* to, std::int64_t rows, std::int64_t columns, std::int64_t stride, bool keep) {
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    return {static_cast<T*>(writable(to, rows, columns * size, stride * size, keep)), (rows - 1) * stride + columns};
  }
  void finish();

 private:
  struct copy {
    void* host;
    void const* device;
    std::int64_t rows;
    std::int64_t width;
    std::int64_t pitch;
  };

  void* take(std::int64_t bytes);
  std::int64_t blocks_of(char const* kernel, void const* code, int threads) const;
  void copy_to_device(void* to, void const* from, std::int64_t bytes);
  void const* reachable(void const* from, std::int64_t bytes);
  void* writable(void* to, std::int64_t rows, std::int64_t width, std::int64_t pitch, bool keep);

  stream stream_;
  device_array workspace_;
  device_buffer<std::int32_t> counters_;
  upload_ring uploads_;
  std::int64_t used_ = 0;
  std::int64_t processors_ = 0;
  mutable std::vector<std::pair<void const*, std::int64_t>> blocks_of_;  ///< of each kernel that was asked for
  std::vector<copy> copies_;
};

}  // namespace kvpolicy::gpu
