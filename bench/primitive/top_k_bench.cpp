// SnapKV's choice in a layer: 496 of 8176 tokens for each KV head. Scores are fresh from scoring, so in the cache.
#include <kvpolicy/primitive/top_k.hpp>

#include <array>

#include "executors.hpp"

namespace kvpolicy::bench {
namespace {

using namespace smollm2;

constexpr std::int64_t tokens = shape.max_tokens - 16;
bool const registered = register_on_each("top_k", shape.kv_heads* tokens * 4, [](auto& exec, std::size_t turn) {
  static ring const scores(shape.kv_heads, tokens, shape.layers * shape.kv_heads * tokens * 4);
  constexpr std::array<std::int32_t, shape.kv_heads> k{496, 496, 496};
  static std::array<std::int32_t, 3 * 496> indices;
  top_k(scores.at(turn), k, table<std::int32_t>{indices.data(), shape.kv_heads, 496, 496}, exec);
});

}  // namespace
}  // namespace kvpolicy::bench
