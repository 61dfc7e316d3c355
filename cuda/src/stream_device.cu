// Memory, copies and errors of a stream_device.
#include "kvpolicy/gpu/base/stream_device.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "kvpolicy/gpu/base/device_launch.cuh"

namespace kvpolicy::gpu {

namespace {

void check(cudaError_t result, std::string const& what) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // reported here, not by the next call
  std::string const message = what + ": " + cudaGetErrorString(result);
  if (result == cudaErrorMemoryAllocation) throw device_memory_exceeded(message);
  throw device_error(message);
}

/// Whether kernels may read and write what lies there: device, managed and registered host memory.
bool on_device(void const* at) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, at), "asking where an address lies");
  return attributes.type != cudaMemoryTypeUnregistered;
}

}  // namespace

void check_launch(char const* kernel, grid_size const& grid, cudaError_t result) {
  if (result == cudaSuccess) return;
  cudaGetLastError();
  throw device_error(std::string("launching ") + kernel + " on " + std::to_string(grid.x) + " x " + std::to_string(grid.y) +
                     " x " + std::to_string(grid.z) + " blocks: " + cudaGetErrorString(result));
}

device_allocator& cuda_allocator() noexcept {
  struct cuda final : device_allocator {
    void* allocate(std::int64_t bytes, stream) override {
      void* data = nullptr;
      check(cudaMalloc(&data, static_cast<std::size_t>(bytes)), "allocating " + std::to_string(bytes) + " bytes on the device");
      return data;
    }
    void release(void* data, std::int64_t, stream) noexcept override { cudaFree(data); }
  };
  static cuda& only = *new cuda;  // memory may be released when statics are gone
  return only;
}

device_array::device_array(std::int64_t bytes, stream on, device_allocator& from) : bytes_(bytes), stream_(on), from_(&from) {
  if (bytes > 0) data_ = static_cast<std::byte*>(from.allocate(bytes, on));
}

device_array::~device_array() {
  if (data_ != nullptr) from_->release(data_, bytes_, stream_);
}

pinned_memory::pinned_memory(void* data, std::int64_t bytes, std::int64_t piece) {
  auto* const first = static_cast<std::byte*>(data);
  for (std::int64_t at = 0; at < bytes; at += piece) {
    std::int64_t const size = bytes - at < piece ? bytes - at : piece;
    cudaError_t const result = cudaHostRegister(first + at, static_cast<std::size_t>(size), cudaHostRegisterMapped);
    if (result != cudaSuccess) {
      for (void* const before : pieces_) cudaHostUnregister(before);
      check(result, "pinning " + std::to_string(size) + " of " + std::to_string(bytes) + " bytes of host memory");
    }
    pieces_.push_back(first + at);
  }
}

pinned_memory::~pinned_memory() {
  for (void* const piece : pieces_) cudaHostUnregister(piece);
}

stream_event::stream_event() {
  cudaEvent_t made = nullptr;
  check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "creating an event");
  event_ = made;
}

stream_event::~stream_event() {
  if (event_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(event_));
}

upload_ring::upload_ring() {
  void* data = nullptr;
  check(cudaHostAlloc(&data, static_cast<std::size_t>(2 * half_bytes), cudaHostAllocDefault),
        "pinning " + std::to_string(2 * half_bytes) + " bytes for copies to the device");
  data_ = static_cast<std::byte*>(data);
}

upload_ring::~upload_ring() {
  if (data_ == nullptr) return;
  for (stream_event const& done : done_) cudaEventSynchronize(static_cast<cudaEvent_t>(done.get()));
  cudaFreeHost(data_);
}

void upload_ring::copy(void* to, void const* from, std::int64_t bytes, stream on) {
  std::string const what = "copying " + std::to_string(bytes) + " bytes to the device";
  for (std::int64_t done = 0; done < bytes;) {
    if (used_ == half_bytes) {
      half_ = 1 - half_;
      used_ = 0;
      check(cudaEventSynchronize(static_cast<cudaEvent_t>(done_[half_].get())), what);
    }
    std::int64_t const piece = std::min(bytes - done, half_bytes - used_);
    auto const size = static_cast<std::size_t>(piece);
    std::byte* const at = data_ + half_ * half_bytes + used_;
    std::memcpy(at, static_cast<std::byte const*>(from) + done, size);
    check(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, at, size, cudaMemcpyHostToDevice, on), what);
    check(cudaEventRecord(static_cast<cudaEvent_t>(done_[half_].get()), on), what);
    used_ = std::min(half_bytes, used_ + divided_up(piece, 16) * 16);
    done += piece;
  }
}

stream_device::stream_device(stream on, std::int64_t workspace_bytes, device_allocator& from)
    : stream_device(on, device_array(workspace_bytes, on, from), from) {}

stream_device::stream_device(stream on, device_array workspace, device_allocator& from)
    : stream_device(on, buffer<std::byte>{workspace.data(), workspace.bytes()}, from) {
  own_workspace_ = std::move(workspace);
}

stream_device::stream_device(stream on, buffer<std::byte> workspace, device_allocator& from)
    : stream_(on), from_(&from), workspace_(workspace), counters_(std::int64_t{1} << 12, on, from) {
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % 256 != 0)
    throw device_error("a workspace of " + std::to_string(workspace.size) +
                       " bytes is not aligned to 256; cudaMalloc's memory is");
  int device = 0;
  int processors = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "asking for the device's size");
  processors_ = processors;
  check(cudaMemsetAsync(counters_.get().data, 0, static_cast<std::size_t>(counters_.get().size) * sizeof(std::int32_t), on),
        "setting counters to 0");
  check(cudaStreamSynchronize(on), "setting counters to 0");
}

std::int64_t stream_device::blocks_of(char const* kernel, void const* code, int threads) const {
  for (auto const& [of, blocks] : blocks_of_) {
    if (of == code) return blocks;
  }
  int of_one = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_one, code, threads, 0),
        std::string("asking how many blocks of ") + kernel + " fit a multiprocessor");
  blocks_of_.emplace_back(code, processors_ * (of_one > 0 ? of_one : 1));
  return blocks_of_.back().second;
}

void* stream_device::take(std::int64_t bytes) {
  std::int64_t const from = divided_up(used_, 256) * 256;
  if (from + bytes > workspace_.size) {
    throw workspace_exceeded("a workspace of " + std::to_string(workspace_.size) + " bytes, of which " + std::to_string(from) +
                             " are used, can't give " + std::to_string(bytes) + " more; make it larger");
  }
  used_ = from + bytes;
  return workspace_.data + from;
}

void stream_device::copy_to_device(void* to, void const* from, std::int64_t bytes) {
  if (bytes == 0) return;
  uploads_.copy(to, from, bytes, stream_);
}

void stream_device::order(stream before, stream behind) {
  auto const event = static_cast<cudaEvent_t>(ordered_.get());
  check(cudaEventRecord(event, before), "marking what another stream waits for");
  check(cudaStreamWaitEvent(behind, event, 0), "waiting for another stream");
}

void const* stream_device::reachable(void const* from, std::int64_t bytes) {
  if (from == nullptr || bytes == 0 || on_device(from)) return from;
  void* const at = take(bytes);
  copy_to_device(at, from, bytes);
  return at;
}

void* stream_device::writable(void* to, std::int64_t rows, std::int64_t width, std::int64_t pitch, bool keep) {
  if (to == nullptr || rows == 0 || width == 0 || on_device(to)) return to;
  void* const at = take((rows - 1) * pitch + width);
  copies_.push_back({to, at, rows, width, pitch});
  if (keep) {
    check(cudaMemcpy2DAsync(at, static_cast<std::size_t>(pitch), to, static_cast<std::size_t>(pitch),
                            static_cast<std::size_t>(width), static_cast<std::size_t>(rows), cudaMemcpyHostToDevice, stream_),
          "copying " + std::to_string(rows) + " rows of " + std::to_string(width) + " bytes to the device");
  }
  return at;
}

void stream_device::finish() {
  for (copy const& c : copies_) {
    check(
        cudaMemcpy2DAsync(c.host, static_cast<std::size_t>(c.pitch), c.device, static_cast<std::size_t>(c.pitch),
                          static_cast<std::size_t>(c.width), static_cast<std::size_t>(c.rows), cudaMemcpyDeviceToHost, stream_),
        "copying " + std::to_string(c.rows) + " rows of " + std::to_string(c.width) + " bytes from the device");
  }
  copies_.clear();
  check(cudaStreamSynchronize(stream_), "waiting for the device");
}

}  // namespace kvpolicy::gpu
