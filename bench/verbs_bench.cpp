// What a verb costs beside its policy's work: checks of shape, order and signals, in a layer's choose() of a policy that keeps
// everything. Beside it a layer's choose() of quest, which it is a share of.
#include "executors.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/quest.hpp"

namespace kvpolicy::bench {
namespace {

/// The same step again and again: its token's tail was removed.
template <class Policy>
void choose(benchmark::State& state, Policy const& policy) {
  auto const view = [](std::int64_t tokens) {
    strided_view<> all = smollm2::cache();
    all.token_count = tokens;
    return all;
  };
  constexpr std::int64_t tokens = 7000;
  simd_exec exec(smollm2::shape);
  auto request = start(policy, smollm2::shape);
  for (std::int64_t l = 0; l < smollm2::shape.layers; ++l) request.prefill(view(tokens - 1), {l}, {}, exec);
  std::size_t turn = 0;
  for (auto _ : state) {
    layer_id const layer = smollm2::layer_of(turn++);
    if (layer.value == 0) request.cut(tokens - 1);
    benchmark::DoNotOptimize(request.choose(view(tokens), layer, {smollm2::queries()}, exec).tokens());
  }
}

bool const registered = [] {
  benchmark::RegisterBenchmark("choose, full/simd x1", [](benchmark::State& s) { choose(s, presets::full{}); })->UseRealTime();
  benchmark::RegisterBenchmark("choose, quest/simd x1", [](benchmark::State& s) {
    choose(s, presets::quest{.tokens = 512});
  })->UseRealTime();
  return true;
}();

}  // namespace
}  // namespace kvpolicy::bench
