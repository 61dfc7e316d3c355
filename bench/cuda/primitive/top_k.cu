// Exact top-2048 of rows of random scores; "context" is a row's length, "batch" the rows.
#include "kvpolicy/cuda/launch/units.hpp"
#include "primitives.hpp"

namespace kvpolicy::bench {

void top_ks(gpu& on) {
  constexpr std::int64_t k = 2048;
  on.each_cell({1, 64}, {4096, 16384, 32768, 65536}, [&](std::int64_t rows, std::int64_t columns) {
    on.run("top 2048", rows, columns, [&] {
      double const bytes = llama_8b::top_k(rows, columns, k);
      cuda::stream_device device(on.on());
      std::vector<cuda::device_buffer<float>> scores;
      for (int left = on.copies(bytes, bytes); left > 0; --left) scores.push_back(on.floats(rows * columns));
      cuda::device_buffer<std::int32_t> const found(rows * k);
      return outcome{bytes, on.time([&](int turn) {
                       cuda::top_k_body<1>::arguments a{};
                       a.scores = scores[static_cast<std::size_t>(turn) % scores.size()].get();
                       a.score_stride = columns;
                       a.columns.all = columns;
                       a.k.all = k;
                       a.indices = found.get();
                       a.index_stride = k;
                       cuda::launch_top_k(device, a, rows, columns);
                     })};
    });
  });
}

}  // namespace kvpolicy::bench
