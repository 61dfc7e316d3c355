// The benchmarks' device without a GPU: kernels are executed from their PTX, and what they do is counted.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "cuda/ptx/memory.hpp"
#include "cuda/ptx/runtime.hpp"
#include "gpu.hpp"

namespace kvpolicy::bench {

namespace {

/// What the host can write of device memory.
template <class T>
T* on_this_side(gpu::buffer<T> const& of) {
  return static_cast<T*>(ptx::memory::device().host_address(of.data, static_cast<std::size_t>(of.size) * sizeof(T)));
}

/// Kernels that ran between two countings, the dearest in bytes first, and their sum.
std::vector<field> difference(std::map<std::string, ptx::counts> const& before, std::map<std::string, ptx::counts> const& after,
                              double& bytes) {
  ptx::counts all;
  std::vector<std::pair<std::int64_t, std::string>> lines;
  for (auto const& [name, now] : after) {
    auto const found = before.find(name);
    ptx::counts const then = found == before.end() ? ptx::counts{} : found->second;
    std::int64_t const launches = now.launches - then.launches, instructions = now.instructions - then.instructions;
    std::int64_t const read = 32 * (now.sectors_read - then.sectors_read),
                       written = 32 * (now.sectors_written - then.sectors_written);
    if (launches == 0) continue;
    all.launches += launches, all.instructions += instructions, all.sectors_read += read, all.sectors_written += written;
    lines.emplace_back(-read - written,
                       "{\"kernel\": \"" + ptx::readable(name) + "\", \"launches\": " + std::to_string(launches) +
                           ", \"instructions\": " + std::to_string(instructions) + ", \"read\": " + std::to_string(read) +
                           ", \"written\": " + std::to_string(written) + "}");
  }
  std::ranges::sort(lines);
  std::string kernels;
  for (auto const& [order, line] : lines) kernels += (kernels.empty() ? "" : ", ") + line;
  bytes = static_cast<double>(all.sectors_read + all.sectors_written);
  auto const sum = [](char const* name, std::int64_t of) { return field{name, std::to_string(of)}; };
  return {sum("launches", all.launches),
          sum("instructions", all.instructions),
          sum("read", all.sectors_read),
          sum("written", all.sectors_written),
          {"kernels", "[" + kernels + "]"}};
}

}  // namespace

bool measured_gpu::there() noexcept {
  setenv("KVPOLICY_PTX_COUNTS", "1", 1);
  return true;
}

measured_gpu::measured_gpu(options const& wanted) : wanted_(wanted) {
  cudaStream_t made = nullptr;
  cudaStreamCreate(&made);
  stream_ = made;
}
measured_gpu::~measured_gpu() = default;

std::int64_t measured_gpu::free_bytes() const { return std::int64_t{8} << 30; }

gpu::device_buffer<float> measured_gpu::floats(std::int64_t count) {
  gpu::device_buffer<float> made(count);
  std::minstd_rand random{seed_++};
  float* const to = on_this_side(made.get());
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(random()) / 1073741824.0F - 1;
  return made;
}
gpu::device_buffer<std::uint16_t> measured_gpu::halves(std::int64_t count) {
  gpu::device_buffer<std::uint16_t> made((count + 1) / 2 * 2);
  std::minstd_rand random{seed_++};
  std::uint16_t* const to = on_this_side(made.get());
  // A sign, an exponent of 1/8 to 1, and seven more bits.
  for (std::int64_t i = 0; i < made.get().size; ++i) {
    std::uint32_t const bits = random() >> 8;
    to[i] = static_cast<std::uint16_t>((bits & 0x8000) | (124 + (bits & 3)) << 7 | (bits >> 2 & 0x7f));
  }
  return made;
}
gpu::device_buffer<std::int32_t> measured_gpu::numbers(std::vector<std::int32_t> const& values) {
  gpu::device_buffer<std::int32_t> made(std::ssize(values));
  std::memcpy(on_this_side(made.get()), values.data(), values.size() * sizeof(std::int32_t));
  return made;
}
std::vector<std::int32_t> measured_gpu::on_host(gpu::buffer<std::int32_t const> from) {
  cudaStreamSynchronize(stream_);
  auto const* const first = on_this_side(from);
  return {first, first + from.size};
}

int measured_gpu::copies(double, double) const { return 1; }

timing measured_gpu::time(std::function<void(int)> const& enqueue, int) {
  enqueue(0);
  auto const before = ptx::counts_by_kernel();
  enqueue(1);
  timing made;
  double bytes = 0;
  made.counted = difference(before, ptx::counts_by_kernel(), bytes);
  if (cudaStreamSynchronize(stream_) != cudaSuccess) throw gpu::device_error("a kernel failed");
  made.us = bytes / llama_8b::floor_speed * 1e6;
  return made;
}

}  // namespace kvpolicy::bench
