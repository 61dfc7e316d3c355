// A GPU behind a stream, with memory to work in. Compiled: link kvpolicy::gpu. Including this needs no CUDA header.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/gpu/base/device_memory.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::gpu {

/// Runs kernels on a stream, in order. Models staging_device and owning_device. Not thread-safe.
class stream_device {
 public:
  using memory = device_memory;

  /// Allocates the workspace, once, on the current device.
  /// @param on  the stream
  /// @param workspace_bytes  scratch for one call; see docs/cuda.md for policies that need more than the default
  /// @param from  where all its memory comes from; must outlive this, and what it allocates
  /// @throws device_error if CUDA refuses
  explicit stream_device(stream on, std::int64_t workspace_bytes = std::int64_t{64} << 20,
                         device_allocator& from = cuda_allocator());

  /// Uses the engine's memory as its workspace.
  /// @param on,workspace  the stream; device memory, aligned to 256 bytes, that outlives this and that enqueued work uses alone
  /// @param from  where the rest of its memory comes from; must outlive this, and what it allocates
  /// @throws device_error if the workspace is not aligned, or CUDA refuses
  stream_device(stream on, buffer<std::byte> workspace, device_allocator& from = cuda_allocator());

  stream on() const noexcept { return stream_; }
  /// Uses another stream from now on.
  /// @param other  the stream; order what is enqueued there after what was enqueued before, because scratch is shared
  void on(stream other) noexcept { stream_ = other; }
  /// Enqueues work on another stream, after what was enqueued on this one so far. What is enqueued here goes on beside it.
  /// @param other  the stream; its work must use none of this device's scratch
  /// @param work  enqueues by this device
  /// @throws device_error if CUDA refuses
  template <class Work>
  void beside(stream other, Work work) {
    struct ends {
      stream& on;
      stream back;
      ~ends() { on = back; }
    } const restore{stream_, stream_};
    order(stream_, other);
    stream_ = other;
    work();
  }
  /// Orders what is enqueued from now on after what was enqueued on another stream. A captured step joins every stream that
  /// beside() took along, before the capture ends.
  /// @param other  the stream
  /// @throws device_error if CUDA refuses
  void join(stream other) { order(other, stream_); }

  /// Enqueues a body: one of the library's, or your own from a .cu that includes kvpolicy/gpu/kvpolicy.cuh.
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
    return device_buffer<T>(count, stream_, *from_);
  }
  /// Enqueues a copy from the host, whose memory may change once this returns.
  /// @param to,from,count  the destination, the source, and its elements
  /// @throws device_error if CUDA refuses
  template <class T>
  void upload(buffer<T> to, T const* from, std::int64_t count) {
    copy_to_device(to.data, from, count * static_cast<std::int64_t>(sizeof(T)));
  }

  /// Copies to the host, and waits for the device.
  /// @param to,from  the destination, and the source
  /// @throws device_error if CUDA refuses, or a kernel failed
  template <class T>
  void download(T* to, buffer<T const> from) {
    auto const bytes = from.size * static_cast<std::int64_t>(sizeof(T));
    if (bytes > 0) copies_.push_back({to, from.data, 1, bytes, bytes});
    finish();
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

  stream_device(stream on, device_array workspace, device_allocator& from);
  void order(stream before, stream behind);
  void* take(std::int64_t bytes);
  std::int64_t blocks_of(char const* kernel, void const* code, int threads) const;
  void copy_to_device(void* to, void const* from, std::int64_t bytes);
  void const* reachable(void const* from, std::int64_t bytes);
  void* writable(void* to, std::int64_t rows, std::int64_t width, std::int64_t pitch, bool keep);

  stream stream_;
  stream_event ordered_;
  device_allocator* from_;
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
