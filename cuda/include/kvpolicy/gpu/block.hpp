// The block concept: what a kernel body may do. Bodies written over it run on a GPU and, checked, on a CPU.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "kvpolicy/types.hpp"

#if defined(__CUDACC__)
#define KVPOLICY_KERNEL __device__ __forceinline__
#define KVPOLICY_UNROLL _Pragma("unroll")
#define KVPOLICY_UNROLL_4 _Pragma("unroll 4")
#else
#define KVPOLICY_KERNEL inline
#define KVPOLICY_UNROLL
#define KVPOLICY_UNROLL_4
#endif

namespace kvpolicy::gpu {

/// Global memory that a kernel is given: T const is only read. `size` is in elements; only the GPU emulator looks at it.
template <class T>
struct buffer {
  T* data = nullptr;
  std::int64_t size = 0;

  template <class U>
    requires(std::is_same_v<U, T const> && !std::is_const_v<T>)
  constexpr operator buffer<U>() const noexcept { return {data, size}; }
};

/// 16 bytes, loaded and stored at once; their address is a multiple of 16.
struct alignas(16) pack {
  std::uint32_t word[4];
};

struct grid_size {
  std::int64_t x = 1;
  std::int64_t y = 1;
  std::int64_t z = 1;
};

// A body is a type with
//
//   static constexpr unsigned threads;                        of a block, a multiple of 32
//   static constexpr char const* name;                        for messages and reports
//   struct arguments { buffer<...> ...; numbers ... };        trivially copyable
//   template <class B> struct shared { ... };                 B::array, B::scan_storage, B::reduce_storage, B::last_storage;
//                                                             none: inherit no_shared
//   template <class B> KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a);
//
// and a block B offers
//
//   B::threads; block.thread(); block.x(), .y(), .z()         unsigned
//   block.sync()                                              every thread, at the same place in the text
//   block.exclusive_sum(storage, int, int& total) -> int      collective over the block; sync before storage is used again
//   block.reduce(storage, T, op) -> T                         the same; the result is thread 0's alone
//   block.last_of(storage, counters, i, count) -> bool        collective: whether this block is the last of `count` to come
//                                                             to counter i, which is 0 before and after: it sees what the
//                                                             others wrote before they came; sync before storage is used
//                                                             again
//   block.tile() -> warp                                      lane(), index(), sync(), ballot(bool), shfl(v, lane),
//                                                             shfl_xor(v, mask); collective over the warp's 32 threads
//   block.tile().multiply<E>(a, b, c)                         c += A B on matrices of halves, 16 x 16, 16 x 8 and 16 x 8,
//                                                             a lane's part of each laid out as PTX's mma.m16n8k16
//   block.tile().transpose(word) -> word                      an 8 x 8 matrix of halves, lane l with columns 2 (l % 4) and
//                                                             the next of row l / 4, the other way round
//   block.global(buffer<T>) -> g                              g[i], g[i] = v, g.load(i) -> pack, g.store(i, pack),
//                                                             g.atomic_add(i, v) -> T before; i in elements, 64 bit
//   B::array<T, N> a                                          shared memory: a[i], a[i] = v, a.atomic_add(i, v) -> T
//
// g[i] and a[i] are proxies: write `float x = a[i]`, not `auto x = a[i]`, and no a[i] += x.

/// What a body without shared memory inherits.
struct no_shared {
  template <class B>
  struct shared {};
};

/// The thread's number among those of all blocks along x.
template <class B>
KVPOLICY_KERNEL std::int64_t index_in_grid(B& block) {
  return static_cast<std::int64_t>(block.x()) * B::threads + block.thread();
}

}  // namespace kvpolicy::gpu
