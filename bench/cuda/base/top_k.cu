// Exact top-2048 of rows of random scores; "context" is a row's length, "batch" the rows. Beside it CUB's sort of the same
// rows: what CCCL 3.0 has instead of a top-k.
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_segmented_radix_sort.cuh>

#include "graph.hpp"
#include "kvpolicy/gpu/base/top_k.hpp"
#include "primitives.hpp"

namespace kvpolicy::bench {
namespace {

void sort_rows(measured_gpu& on, std::int64_t rows, std::int64_t columns, double bytes) {
  on.run("top 2048 by CUB's sort of all", rows, columns, [&] {
    std::int64_t const all = rows * columns;
    auto const scores = on.floats(all);
    std::vector<std::int32_t> places(static_cast<std::size_t>(all));
    for (std::size_t i = 0; i < places.size(); ++i)
      places[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(columns));
    std::vector<std::int32_t> ends(static_cast<std::size_t>(rows + 1));
    for (std::size_t row = 0; row < ends.size(); ++row)
      ends[row] = static_cast<std::int32_t>(row * static_cast<std::size_t>(columns));
    auto const indices = on.numbers(places);
    auto const segments = on.numbers(ends);
    gpu::device_buffer<float> const sorted(all);
    gpu::device_buffer<std::int32_t> const sorted_indices(all);
    std::size_t scratch = 0;
    auto const sort = [&](void* temporary) {  // of one row with the whole device
      cudaError_t const result =
          rows == 1
              ? cub::DeviceRadixSort::SortPairsDescending(temporary, scratch, scores.get().data, sorted.get().data,
                                                          indices.get().data, sorted_indices.get().data, all, 0, 32, on.on())
              : cub::DeviceSegmentedRadixSort::SortPairsDescending(
                    temporary, scratch, scores.get().data, sorted.get().data, indices.get().data, sorted_indices.get().data,
                    all, static_cast<int>(rows), segments.get().data, segments.get().data + 1, 0, 32, on.on());
      check(result, "sorting rows");
    };
    sort(nullptr);
    gpu::device_array const temporary(static_cast<std::int64_t>(scratch));
    return outcome{
        bytes, on.time([&](int) { sort(temporary.data()); }), {text("note", "to compare with: its rows may lie in the cache")}};
  });
}

}  // namespace

void top_ks(measured_gpu& on) {
  constexpr std::int64_t k = 2048;
  on.each_cell({1, 64}, {4096, 16384, 32768, 65536}, [&](std::int64_t rows, std::int64_t columns) {
    on.run("top 2048", rows, columns, [&] {
      double const bytes = llama_8b::top_k(rows, columns, k);
      gpu::stream_device device(on.on());
      std::vector<gpu::device_buffer<float>> scores;
      for (int left = on.copies(bytes, bytes); left > 0; --left) scores.push_back(on.floats(rows * columns));
      gpu::device_buffer<std::int32_t> const found(rows * k);
      return outcome{bytes, on.time([&](int turn) {
                       gpu::detail::top_k_arguments a{};
                       a.scores = scores[static_cast<std::size_t>(turn) % scores.size()].get();
                       a.score_stride = columns;
                       a.columns.all = columns;
                       a.k.all = k;
                       a.indices = found.get();
                       a.index_stride = k;
                       gpu::detail::launch_top_k(device, a, rows, columns);
                     })};
    });
    sort_rows(on, rows, columns, llama_8b::top_k(rows, columns, k));
  });
}

}  // namespace kvpolicy::bench
