// One step's scores: every CHESS page vector against the anchor, every Quest page of a layer against the queries.
#include <kvpolicy/primitive/score.hpp>

#include <numeric>

#include "executors.hpp"

namespace kvpolicy::bench {
namespace {

using namespace smollm2;

constexpr std::int64_t chess_pages = shape.max_tokens / 32;
bool const dot_registered = register_on_each("score_dot", chess_pages* all_dims * 4, [](auto& exec, std::size_t turn) {
  static ring const vectors(chess_pages, all_dims);
  static std::vector<float> const anchor = random_floats(all_dims);
  static std::vector<float> scores(chess_pages);
  static std::vector<std::int32_t> const pages = [] {
    std::vector<std::int32_t> all(chess_pages);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }();
  score_dot(std::span(anchor), vectors.at(turn), pages, std::span(scores), exec);
});

constexpr std::int64_t quest_pages = shape.max_tokens / 16;
constexpr std::int64_t bounds_bytes = shape.kv_heads * quest_pages * 2 * row_bytes;
bool const bounds_registered = register_on_each("score_bounds", bounds_bytes, [](auto& exec, std::size_t turn) {
  constexpr std::size_t tables = ring_bytes / bounds_bytes;
  static std::vector<std::uint16_t> elements = random_halves(tables * bounds_bytes / 2);
  static output const scores(shape.kv_heads, quest_pages);
  bounds_table const bounds{.data = reinterpret_cast<std::byte*>(elements.data()) + turn % tables * bounds_bytes,
                            .type = shape.type,
                            .heads = shape.kv_heads,
                            .units = quest_pages,
                            .head_dim = shape.head_dim};
  score_bounds(queries(), bounds, quest_pages, group_merge::maximum, scores, exec);
});

}  // namespace
}  // namespace kvpolicy::bench
