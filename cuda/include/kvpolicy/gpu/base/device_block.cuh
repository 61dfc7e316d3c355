// The model of the block concept on a GPU: launch geometry, warp shuffles and CUB's block primitives. For nvcc alone.
#pragma once

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "kvpolicy/gpu/base/block.hpp"

namespace kvpolicy::gpu {

/// Global memory. Reads of T const take the read-only path; packs are 128-bit accesses.
template <class T>
class device_global {
 public:
  __device__ __forceinline__ explicit device_global(T* data) : data_(data) {}

  __device__ __forceinline__ decltype(auto) operator[](std::int64_t i) const {
    if constexpr (std::is_const_v<T>) return read(data_ + i);
    else return (data_[i]);
  }
  __device__ __forceinline__ pack load(std::int64_t i) const {
    auto const* const at = reinterpret_cast<uint4 const*>(data_ + i);
    uint4 const v = std::is_const_v<T> ? __ldg(at) : *at;
    return {{v.x, v.y, v.z, v.w}};
  }
  __device__ __forceinline__ void store(std::int64_t i, pack const& v) const {
    *reinterpret_cast<uint4*>(data_ + i) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
  }
  __device__ __forceinline__ T atomic_add(std::int64_t i, T v) const { return atomicAdd(data_ + i, v); }

 private:
  template <class U>
  static __device__ __forceinline__ std::remove_const_t<U> read(U* at) {
    if constexpr (std::is_arithmetic_v<U>) return __ldg(at);
    else return *at;
  }
  T* data_;
};

/// A warp of a block on a GPU.
class device_tile {
 public:
  __device__ __forceinline__ unsigned lane() const { return threadIdx.x & 31u; }
  __device__ __forceinline__ unsigned index() const { return threadIdx.x >> 5; }
  __device__ __forceinline__ void sync() const { __syncwarp(); }
  __device__ __forceinline__ std::uint32_t ballot(bool which) const { return __ballot_sync(0xffffffffu, which); }
  template <class T>
  __device__ __forceinline__ T shfl(T value, unsigned lane) const {
    return __shfl_sync(0xffffffffu, value, static_cast<int>(lane));
  }
  template <class T>
  __device__ __forceinline__ T shfl_xor(T value, unsigned mask) const {
    return __shfl_xor_sync(0xffffffffu, value, static_cast<int>(mask));
  }
  template <element_type E>
  __device__ __forceinline__ void multiply(std::uint32_t const (&a)[4], std::uint32_t const (&b)[2], float (&c)[4]) const {
    static_assert(E == element_type::f16 || E == element_type::bf16);
    if constexpr (E == element_type::f16) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
  __device__ __forceinline__ std::uint32_t transpose(std::uint32_t word) const {
    std::uint32_t turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
    return turned;
  }
};

/// A block on a GPU; block.hpp documents its members.
/// @tparam Threads  threads of the block
template <unsigned Threads>
class device_block {
 public:
  static constexpr unsigned threads = Threads;

  template <class T, int N>
  class array {
   public:
    __device__ __forceinline__ T& operator[](std::int64_t i) { return data_[i]; }
    __device__ __forceinline__ T atomic_add(std::int64_t i, T v) { return atomicAdd(data_ + i, v); }

   private:
    alignas(16) T data_[N];
  };
  template <class T>
  struct scan_storage {
    typename cub::BlockScan<T, Threads>::TempStorage storage;
  };
  template <class T>
  struct reduce_storage {
    typename cub::BlockReduce<T, Threads>::TempStorage storage;
  };

  struct last_storage {
    int last;
  };

  __device__ __forceinline__ unsigned thread() const { return threadIdx.x; }
  __device__ __forceinline__ unsigned x() const { return blockIdx.x; }
  __device__ __forceinline__ unsigned y() const { return blockIdx.y; }
  __device__ __forceinline__ unsigned z() const { return blockIdx.z; }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  __device__ __forceinline__ device_tile tile() const { return {}; }

  template <class T>
  __device__ __forceinline__ device_global<T> global(buffer<T> of) const {
    return device_global<T>(of.data);
  }
  template <class T>
  __device__ __forceinline__ T exclusive_sum(scan_storage<T>& s, T value, T& total) const {
    T before;
    cub::BlockScan<T, Threads>(s.storage).ExclusiveSum(value, before, total);
    return before;
  }
  template <class T, class Op>
  __device__ __forceinline__ T reduce(reduce_storage<T>& s, T value, Op op) const {
    return cub::BlockReduce<T, Threads>(s.storage).Reduce(value, op);
  }
  __device__ __forceinline__ bool last_of(last_storage& s, buffer<std::int32_t> counters, std::int64_t i,
                                          std::int32_t count) const {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      s.last = atomicAdd(counters.data + i, 1) == count - 1 ? 1 : 0;
      if (s.last != 0) counters.data[i] = 0;
    }
    __syncthreads();
    __threadfence();
    return s.last != 0;
  }
};

/// How many blocks of a body are to fit a multiprocessor: its registers are limited for that.
template <class Body>
inline constexpr unsigned least_blocks = [] {
  if constexpr (requires { Body::least_blocks; }) return Body::least_blocks;
  else return 1u;
}();

/// The kernel that runs a body.
template <class Body>
__global__ void __launch_bounds__(Body::threads, least_blocks<Body>)
    kernel_of(__grid_constant__ typename Body::arguments const arguments) {
  using block = device_block<Body::threads>;
  __shared__ typename Body::template shared<block> shared;
  block b;
  Body::run(b, shared, arguments);
}

}  // namespace kvpolicy::gpu
