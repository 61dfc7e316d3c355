// A step's attention under a mask that leaves 2,048 tokens, as DeepSeek V3.2's indexer does: llama.cpp's kernel, which reads
// all tokens, and kvpolicy's, which reads those. Both on two threads.
#include "chosen_tokens.hpp"

#include <benchmark/benchmark.h>
#include <ggml-cpu.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "llama/sparse_graph.hpp"

namespace kvpolicy::llama {
namespace {

using testing::data_of;
using testing::sparse_graph;
using testing::sparse_shape;

sparse_graph& graph_of(sparse_shape const& shape) {
  static std::vector<std::pair<sparse_shape, std::unique_ptr<sparse_graph>>> made;
  for (auto& [of, graph] : made)
    if (of.key_dim == shape.key_dim && of.cells == shape.cells) return *graph;
  sparse_graph& graph = *made.emplace_back(shape, std::make_unique<sparse_graph>(shape)).second;
  std::minstd_rand random(1);
  std::normal_distribution<float> normal;
  std::generate_n(data_of<float>(graph.queries), ggml_nelements(graph.queries), [&] { return normal(random); });
  for (ggml_tensor* const rows : {graph.cache, graph.values})
    std::generate_n(data_of<std::uint16_t>(rows), ggml_nelements(rows), [&] { return float_to_half(normal(random)); });
  std::fill_n(data_of<float>(graph.engines), ggml_nelements(graph.engines), 0.0f);
  std::vector<std::int32_t> all(static_cast<std::size_t>(shape.cells));
  std::iota(all.begin(), all.end(), 0);
  std::ranges::shuffle(all, random);
  std::copy_n(all.begin(), shape.chosen, data_of<std::int32_t>(graph.indices));
  ggml_backend_cpu_set_n_threads(graph.cpu(), 1);
  graph.compute();
  return graph;
}

void engine(benchmark::State& state, sparse_shape const& shape) {
  sparse_graph& graph = graph_of(shape);
  for (auto _ : state) graph.compute_attention();
}

void ours(benchmark::State& state, sparse_shape const& shape) {
  sparse_graph& graph = graph_of(shape);
  simd_exec exec({.layers = 1,
                  .q_heads = shape.q_heads,
                  .kv_heads = shape.kv_heads,
                  .head_dim = shape.key_dim,
                  .max_tokens = shape.cells,
                  .value_dim = shape.value_dim});
  chosen_tokens reads;
  for (auto _ : state) reads.attend(graph.attention, exec);
}

bool const registered = [] {
  for (std::int64_t const cells : {8192, 16384, 65536})
    for (auto const& [name, shape] :
         {std::pair("latent, 16 heads of 576", sparse_shape{16, 1, 576, 512, cells, 2048}),
          std::pair("grouped, 32 heads over 4 of 128", sparse_shape{32, 4, 128, 128, cells, 2048})}) {
      std::string const of = std::string(name) + ", " + std::to_string(cells) + " tokens";
      benchmark::RegisterBenchmark((of + ": llama.cpp").c_str(), engine, shape);
      benchmark::RegisterBenchmark((of + ": kvpolicy").c_str(), ours, shape);
    }
  return true;
}();

}  // namespace
}  // namespace kvpolicy::llama
