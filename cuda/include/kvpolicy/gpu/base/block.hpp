// The block concept: what a kernel body may do. Bodies written over it run on a GPU, and checked on a CPU.
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

/// Global memory that a kernel gets; a body only reads a buffer of T const.
template <class T>
struct buffer {
  T* data = nullptr;
  std::int64_t size = 0;  ///< elements; only the GPU emulator reads it

  template <class U>
    requires(std::is_same_v<U, T const> && !std::is_const_v<T>)
  constexpr operator buffer<U>() const noexcept { return {data, size}; }
};

/// `count` elements of a buffer, from `first` on.
template <class T>
constexpr buffer<T> part_of(buffer<T> all, std::int64_t first, std::int64_t count) noexcept {
  return {all.data + first, count};
}

/// The size of a buffer that begins anywhere: of elements that are addressed from its `data` on, which may be null.
inline constexpr std::int64_t everywhere = INT64_MAX;

/// 16 bytes that are loaded and stored at once. Their address is a multiple of 16.
struct alignas(16) pack {
  std::uint32_t word[4];
};

/// Which row of an engine's arrays is a sequence's.
struct row_map {
  buffer<std::int32_t const> rows;  ///< `[sequences]`, -1 of one that has none; none: each its own

  /// Returns a sequence's row; one that has none reads row 0, as far as it reads.
  /// @param block,sequence  the thread's block, and the sequence
  template <class B>
  KVPOLICY_KERNEL unsigned of(B& block, unsigned sequence) const {
    if (rows.data == nullptr) return sequence;
    std::int32_t const row = block.global(rows)[sequence];
    return row < 0 ? 0 : static_cast<unsigned>(row);
  }
  /// Returns whether a sequence has a row, which it may write.
  template <class B>
  KVPOLICY_KERNEL bool has(B& block, unsigned sequence) const {
    if (rows.data == nullptr) return true;
    std::int32_t const row = block.global(rows)[sequence];
    return row >= 0;
  }
};

/// The number of blocks of a launch.
struct grid_size {
  std::int64_t x = 1;
  std::int64_t y = 1;
  std::int64_t z = 1;
};

// A body is a type with
//
//   static constexpr unsigned threads;                        of a block: a multiple of 32
//   static constexpr char const* name;                        for messages and reports
//   struct arguments { buffer<...> ...; numbers ... };        trivially copyable
//   template <class B> struct shared { ... };                 B::array, B::scan_storage, B::reduce_storage, B::last_storage;
//                                                             none: inherit no_shared
//   template <class B> KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a);
//
// and a block B offers
//
//   B::threads; block.thread(); block.x(), .y(), .z()         unsigned
//   block.sync()                                              every thread calls it, at the same place in the text
//   block.exclusive_sum(storage, int, int& total) -> int      collective over the block; sync before storage is used again
//   block.reduce(storage, T, op) -> T                         the same; thread 0 alone has the result
//   block.last_of(storage, counters, i, count) -> bool        collective: whether this block is the last of `count` that call
//                                                             it with counter i. The last one sees what the others wrote
//                                                             before. The counter is 0 before and after; sync before storage
//                                                             is used again
//   block.tile() -> warp                                      lane(), index(), sync(), ballot(bool), shfl(v, lane),
//                                                             shfl_xor(v, mask); collective over the warp's 32 threads
//   block.tile().multiply<E>(a, b, c)                         c += A B on matrices of halves, 16 x 16, 16 x 8 and 16 x 8,
//                                                             each lane with the parts that PTX's mma.m16n8k16 gives it
//   block.tile().transpose(word) -> word                      transposes an 8 x 8 matrix of halves; lane l has columns
//                                                             2 (l % 4) and 2 (l % 4) + 1 of row l / 4
//   block.global(buffer<T>) -> g                              g[i], g[i] = v, g.load(i) -> pack, g.store(i, pack),
//                                                             g.atomic_add(i, v) -> T before; i in elements, 64 bit
//   B::array<T, N> a                                          shared memory: a[i], a[i] = v, a.atomic_add(i, v) -> T
//
// g[i] and a[i] are proxies: write `float x = a[i]`, not `auto x = a[i]`, and never a[i] += x.

/// The base of a body without shared memory.
struct no_shared {
  template <class B>
  struct shared {};
};

/// Returns the thread's number among the threads of all blocks along x.
/// @param block  the thread's block
template <class B>
KVPOLICY_KERNEL std::int64_t index_in_grid(B& block) {
  return static_cast<std::int64_t>(block.x()) * B::threads + block.thread();
}

}  // namespace kvpolicy::gpu
