// The benchmarks' own kernels: random content, and the plainest reading and copying there is.
#pragma once

#include "kvpolicy/gpu/base/stream_device.hpp"

namespace kvpolicy::bench {

/// How a kernel streams: blocks of 512 threads, each with as many 16-byte loads on their way.
struct streaming {
  std::int64_t blocks = 1;
  int loads = 8;  ///< 4 or 8
};

/// Random words: floats of [-1, 1), or pairs of bf16 of magnitude 1/8 to 2. Enqueued.
void fill(gpu::stream on, std::int64_t blocks, gpu::buffer<std::uint32_t> words, std::uint32_t seed, bool halves);

/// Reads `bytes`, a multiple of 16; `sink` is some device memory of 4 bytes. Enqueued.
void read_all(gpu::stream on, streaming how, void const* from, std::int64_t bytes, void* sink);

/// Copies as many. Enqueued.
void copy_all(gpu::stream on, streaming how, void const* from, std::int64_t bytes, void* to);

}  // namespace kvpolicy::bench
