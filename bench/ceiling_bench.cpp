// How fast this machine reads memory in order, in the same run: what every share is a share of.
#include "executors.hpp"

namespace kvpolicy::bench {
namespace {

std::uint64_t sum_of(std::uint64_t const* words, std::int64_t count) {
  std::uint64_t sums[16] = {};
  for (std::int64_t i = 0; i < count; i += 16) {
    for (int j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  std::uint64_t sum = 0;
  for (std::uint64_t const part : sums) sum += part;
  return sum;
}

void streaming_read(benchmark::State& state, int threads) {
  constexpr std::int64_t piece = smollm2::layer_bytes / 8;
  crew members(threads);
  auto const* const words = static_cast<std::uint64_t const*>(smollm2::cache().key_base.address);
  for (auto _ : state) {
    members.threads().lead([&] {
      members.threads().for_each(smollm2::ring_bytes / piece,
                                 [&](std::int64_t i) { benchmark::DoNotOptimize(sum_of(words + i * piece / 8, piece / 8)); });
    });
  }
  state.SetBytesProcessed(state.iterations() * smollm2::ring_bytes);
}

bool const registered = [] {
  for (int const threads : {1, 2}) {
    benchmark::RegisterBenchmark(("ceiling/read x" + std::to_string(threads)).c_str(), streaming_read, threads)
        ->UseRealTime()
        ->Repetitions(21);  // all shares hang on it
  }
  return true;
}();

}  // namespace
}  // namespace kvpolicy::bench
