// How fast this machine multiplies and adds in registers, in the same run: what attend_block's share is a share of.
#include "executors.hpp"

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>

namespace kvpolicy::bench {
namespace {

constexpr int turns = 4096;  // of 16 vectors, or 4 tiles

__attribute__((target("avx512f"))) void fma_512() {
  __m512 sums[16];  // of different numbers, or they would be one
  for (int i = 0; i < 16; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  __m512 const by = _mm512_set1_ps(.5f);
  for (int i = 0; i < turns; ++i) {
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, by, by);
  }
  for (__m512& sum : sums) benchmark::DoNotOptimize(sum);
}

__attribute__((target("avx2,fma"))) void fma_256() {
  __m256 sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  __m256 const by = _mm256_set1_ps(.5f);
  for (int i = 0; i < turns; ++i) {
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, by, by);
  }
  for (__m256& sum : sums) benchmark::DoNotOptimize(sum);
}

struct alignas(64) tile_configuration {
  std::uint8_t palette = 1;
  std::uint8_t reserved[15] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

__attribute__((target("amx-tile,amx-bf16"))) void tiles() {
  static constexpr tile_configuration configuration;
  _tile_loadconfig(&configuration);
  for (int i = 0; i < turns; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

void register_peak(std::string const& name, double operations, void (*work)()) {
  for (int const threads : {1, 2}) {
    auto const time = [=](benchmark::State& state) {
      crew members(threads);
      for (auto _ : state) {
        members.threads().lead([&] { members.threads().for_each(threads, [&](std::int64_t) { work(); }); });
      }
      state.counters["flops"] = benchmark::Counter(static_cast<double>(state.iterations()) * threads * turns * operations,
                                                   benchmark::Counter::kIsRate);
    };
    benchmark::RegisterBenchmark(("peak/" + name + " x" + std::to_string(threads)).c_str(), time)->UseRealTime();
  }
}

bool const registered = [] {
  bool const wide = __builtin_cpu_supports("avx512f");
  if (!wide && !__builtin_cpu_supports("fma")) return false;
  register_peak("fma", wide ? 16 * 32 : 16 * 16, wide ? fma_512 : fma_256);
  if (std::string(simd_exec::block_instruction_set()) == "AMX_BF16") register_peak("tiles", 4 * 16 * 16 * 32 * 2, tiles);
  return true;
}();

}  // namespace
}  // namespace kvpolicy::bench

#endif
