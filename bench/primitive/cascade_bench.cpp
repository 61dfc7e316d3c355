// CHESS's choice for the request: 4 grids, 32 chunks and 256 pages, of which 4, 16 and 32 are live and read.
#include <kvpolicy/primitive/cascade.hpp>

#include "executors.hpp"

namespace kvpolicy::bench {
namespace {

using namespace smollm2;

constexpr std::int64_t grids = 4, chunks = 32, pages = 256;
bool const registered = register_on_each("cascade", (4 + 16 + 32) * all_dims * 4, [](auto& exec, std::size_t turn) {
  static ring const vectors(grids + chunks + pages, all_dims);
  static ring const anchors(1, all_dims, 64 * all_dims * 4);  // each leads to other units of the 15 hierarchies
  static cascade_scratch scratch(pages);
  table<float const> const all = vectors.at(turn);
  auto const level = [&](std::int64_t first, std::int64_t rows) {
    return table<float const>{all.row(first), rows, all_dims, all_dims};
  };
  std::array const levels{cascade_level{level(0, grids), 8, .5f}, cascade_level{level(grids, chunks), 8, .2f},
                          cascade_level{level(grids + chunks, pages), 1, .1f}};
  benchmark::DoNotOptimize(cascade(std::span(anchors.at(turn).data, all_dims), levels, scratch, exec));
});

}  // namespace
}  // namespace kvpolicy::bench
