// A communicator over NCCL. Needs nccl.h and the CUDA runtime: link nccl and CUDA::cudart.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "kvpolicy/interop/ranks_deadline.hpp"

namespace kvpolicy {

/// Sums over NCCL ranks, by ncclAllReduce on a stream of its own and polling. Models communicator; neither copied nor moved.
/// Numbers come from the host and return there. The device must be current at construction, use and destruction. Only one
/// thread at a time may use it. sum() allocates at the first call, and when it gets more numbers than in any call before.
class nccl_communicator {
 public:
  /// Takes over an initialised communicator; ncclCommSplit makes one from the engine's.
  /// @param all  the communicator; make it non-blocking (ncclConfig_t::blocking = 0), or the first sum may wait endlessly for
  ///        connections
  /// @param deadline  for one sum: how far ranks may ever be apart, and how long a lost rank may go unnoticed; then `all` is
  ///        aborted
  /// @throws ranks_error if CUDA or NCCL refuses
  /// @throws invalid_value if `deadline` is not above 0
  explicit nccl_communicator(ncclComm_t all, std::chrono::milliseconds deadline = std::chrono::seconds(30))
      : own_(all, comm_end{}), wait_(index_of(all), size_of(all), deadline) {
    cudaStream_t stream = nullptr;
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    stream_.reset(stream);
    cudaEvent_t event = nullptr;
    cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    summed_.reset(event);
  }
  nccl_communicator(nccl_communicator const&) = delete;
  nccl_communicator& operator=(nccl_communicator const&) = delete;

  int rank() const noexcept { return wait_.rank(); }
  int size() const noexcept { return wait_.size(); }

  void sum(std::span<float> values) {
    wait_.begin();
    try {
      reduce(values);
    } catch (ranks_error const&) {
      own_.get_deleter().broken = true;
      own_.reset();  // this ends what runs on the device
      throw;
    }
  }

 private:
  struct comm_end {
    bool broken = false;
    void operator()(ncclComm_t comm) const noexcept { broken ? ncclCommAbort(comm) : ncclCommDestroy(comm); }
  };
  struct stream_end {
    void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
  };
  struct event_end {
    void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
  };
  struct host_end {
    void operator()(float* data) const noexcept { cudaFreeHost(data); }
  };
  struct device_end {
    void operator()(float* data) const noexcept { cudaFree(data); }
  };

  static int index_of(ncclComm_t all) {
    int rank = 0;
    ncclCommUserRank(all, &rank);
    return rank;
  }
  static int size_of(ncclComm_t all) {
    int size = 0;
    ncclCommCount(all, &size);
    return size;
  }

  void reduce(std::span<float> values) {
    std::size_t const count = values.size();
    if (count == 0) return;
    if (count > room_) {
      float* data = nullptr;
      cuda(cudaMallocHost(reinterpret_cast<void**>(&data), count * sizeof(float)), "cudaMallocHost");
      host_.reset(data);
      cuda(cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(float)), "cudaMalloc");
      device_.reset(data);
      room_ = count;
    }
    std::copy(values.begin(), values.end(), host_.get());
    std::size_t const bytes = count * sizeof(float);
    cudaStream_t const stream = stream_.get();
    cuda(cudaMemcpyAsync(device_.get(), host_.get(), bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    nccl(ncclAllReduce(device_.get(), device_.get(), count, ncclFloat, ncclSum, own_.get(), stream), "ncclAllReduce");
    while (!enqueued()) wait_.poll();
    cuda(cudaMemcpyAsync(host_.get(), device_.get(), bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    cuda(cudaEventRecord(summed_.get(), stream), "cudaEventRecord");
    for (;;) {
      cudaError_t const state = cudaEventQuery(summed_.get());
      if (state == cudaSuccess) break;
      if (state != cudaErrorNotReady) cuda(state, "cudaEventQuery");
      enqueued();  // fails if NCCL knows that another rank did
      wait_.poll();
    }
    std::copy_n(host_.get(), count, values.begin());
  }

  /// Whether NCCL has finished its part on the host.
  bool enqueued() {
    ncclResult_t state = ncclSuccess;
    nccl(ncclCommGetAsyncError(own_.get(), &state), "ncclCommGetAsyncError");
    nccl(state, "the communicator");
    return state == ncclSuccess;
  }

  void nccl(ncclResult_t result, char const* call) {
    if (result != ncclSuccess && result != ncclInProgress)
      wait_.fail(std::string("lost the other ranks: ") + call + " says: " + ncclGetErrorString(result));
  }
  void cuda(cudaError_t result, char const* call) {
    if (result != cudaSuccess) wait_.fail(std::string("can't sum: ") + call + " says: " + cudaGetErrorString(result));
  }

  // Destroyed last to first: the communicator's kernels use the stream and the memory.
  std::unique_ptr<float, host_end> host_;
  std::unique_ptr<float, device_end> device_;
  std::unique_ptr<CUevent_st, event_end> summed_;
  std::unique_ptr<CUstream_st, stream_end> stream_;
  std::unique_ptr<ncclComm, comm_end> own_;
  std::size_t room_ = 0;
  ranks_deadline wait_;
};

static_assert(communicator<nccl_communicator>);

}  // namespace kvpolicy
