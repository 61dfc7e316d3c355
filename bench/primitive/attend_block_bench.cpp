// A micro-batch of a prompt, 512 queries behind 7,680 tokens. Bound by arithmetic: 4 operations for each of a pair's channels.
#include <kvpolicy/primitive/attend_block.hpp>

#include "executors.hpp"

namespace kvpolicy::bench {
namespace {

using namespace smollm2;

constexpr std::int64_t queries_in_all = 512;
constexpr std::int64_t pairs = queries_in_all * (shape.max_tokens - queries_in_all) + queries_in_all * (queries_in_all + 1) / 2;

bool const registered = [] {
  for (int const threads : {1, 2}) {
    auto const time = [threads](benchmark::State& state) {
      on_simd run(threads);
      static output const out(queries_in_all * shape.q_heads, shape.head_dim);
      range_list all;
      append(all, 0, shape.max_tokens, reason::open);
      std::size_t turn = 0;
      for (auto _ : state) {
        run([&](auto& exec) {
          layer_id const layer = layer_of(turn++);
          attend_block(window(queries_in_all), cache().keys(layer), cache().values(layer),
                       selection(scope::layer, {&all, 1}, shape.kv_heads), {}, out, exec);
        });
        benchmark::ClobberMemory();
      }
      state.counters["flops"] = benchmark::Counter(
          static_cast<double>(state.iterations() * pairs * shape.q_heads * shape.head_dim * 4), benchmark::Counter::kIsRate);
    };
    std::string const name = std::string("attend_block/") + simd_exec::block_instruction_set() + " x" + std::to_string(threads);
    benchmark::RegisterBenchmark(name.c_str(), time)->UseRealTime();
  }
  return true;
}();

}  // namespace
}  // namespace kvpolicy::bench
