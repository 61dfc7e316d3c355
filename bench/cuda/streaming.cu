#include "streaming.hpp"

#include <cuda_runtime.h>

namespace kvpolicy::bench {
namespace {

__device__ std::uint32_t hash_of(std::uint64_t i, std::uint32_t seed) {
  std::uint64_t x = i + (static_cast<std::uint64_t>(seed) << 40) + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<std::uint32_t>(x >> 32);
}

__global__ void fill_words(std::uint32_t* to, std::int64_t words, std::uint32_t seed, bool halves) {
  std::int64_t const stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += stride) {
    std::uint32_t const bits = hash_of(static_cast<std::uint64_t>(i), seed);
    // bf16 has 7 bits of mantissa; exponents are of 2^-3 to 2^0.
    to[i] = halves ? (bits & 0x81ff81ffu) | 0x3e003e00u
                   : __float_as_uint(static_cast<float>(bits >> 8) * (1.0f / 8388608.0f) - 1.0f);
  }
}

/// Reads everything once. What is written happens by chance, so that no load is left out.
template <int Unrolled>
__global__ void __launch_bounds__(512) read_packs(uint4 const* from, std::int64_t packs, unsigned* sink) {
  std::int64_t const stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (; i + (Unrolled - 1) * stride < packs; i += Unrolled * stride) {
    uint4 v[Unrolled];
#pragma unroll
    for (int u = 0; u < Unrolled; ++u) v[u] = __ldg(from + i + u * stride);
#pragma unroll
    for (int u = 0; u < Unrolled; ++u) sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  for (; i < packs; i += stride) {
    uint4 const v = __ldg(from + i);
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x5bd1e995u) *sink = sum;
}

template <int Unrolled>
__global__ void __launch_bounds__(512) copy_packs(uint4 const* __restrict__ from, std::int64_t packs, uint4* __restrict__ to) {
  std::int64_t const stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + (Unrolled - 1) * stride < packs; i += Unrolled * stride) {
    uint4 v[Unrolled];
#pragma unroll
    for (int u = 0; u < Unrolled; ++u) v[u] = __ldg(from + i + u * stride);
#pragma unroll
    for (int u = 0; u < Unrolled; ++u) to[i + u * stride] = v[u];
  }
  for (; i < packs; i += stride) to[i] = __ldg(from + i);
}

void check(char const* what) {
  cudaError_t const result = cudaGetLastError();
  if (result != cudaSuccess) throw gpu::device_error(std::string(what) + ": " + cudaGetErrorString(result));
}

}  // namespace

void fill(gpu::stream on, std::int64_t blocks, gpu::buffer<std::uint32_t> words, std::uint32_t seed, bool halves) {
  fill_words<<<static_cast<unsigned>(blocks), 256, 0, on>>>(words.data, words.size, seed, halves);
  check("filling memory");
}

void read_all(gpu::stream on, streaming how, void const* from, std::int64_t bytes, void* sink) {
  auto const* const packs = static_cast<uint4 const*>(from);
  auto const blocks = static_cast<unsigned>(how.blocks);
  if (how.loads == 4) read_packs<4><<<blocks, 512, 0, on>>>(packs, bytes / 16, static_cast<unsigned*>(sink));
  else read_packs<8><<<blocks, 512, 0, on>>>(packs, bytes / 16, static_cast<unsigned*>(sink));
  check("reading memory");
}

void copy_all(gpu::stream on, streaming how, void const* from, std::int64_t bytes, void* to) {
  auto const* const packs = static_cast<uint4 const*>(from);
  auto const blocks = static_cast<unsigned>(how.blocks);
  if (how.loads == 4) copy_packs<4><<<blocks, 512, 0, on>>>(packs, bytes / 16, static_cast<uint4*>(to));
  else copy_packs<8><<<blocks, 512, 0, on>>>(packs, bytes / 16, static_cast<uint4*>(to));
  check("copying memory");
}

}  // namespace kvpolicy::bench
