// A whole prompt is pooled, one layer a turn; pages of 32 tokens for means and 16 for bounds.
#include <kvpolicy/primitive/pool.hpp>

#include "executors.hpp"

namespace kvpolicy::bench {
namespace {

using namespace smollm2;

bool const mean_registered = register_on_each("pool_mean", layer_bytes, [](auto& exec, std::size_t turn) {
  static output const means(shape.max_tokens / 32, all_dims);
  layer_id const layer = layer_of(turn);
  pool_mean(cache().keys(layer), {.unit_size = 32, .last = shape.max_tokens}, means,
            layer.value * shape.kv_heads * shape.head_dim, exec);
});

bool const bounds_registered = register_on_each("pool_bounds", layer_bytes, [](auto& exec, std::size_t turn) {
  bounds_table bounds{.type = shape.type, .heads = shape.kv_heads, .units = shape.max_tokens / 16, .head_dim = shape.head_dim};
  static std::vector<std::byte> storage(static_cast<std::size_t>(shape.layers * bounds.bytes()));
  bounds.data = storage.data() + layer_of(turn).value * bounds.bytes();
  pool_bounds(cache().keys(layer_of(turn)), {.unit_size = 16, .last = shape.max_tokens}, bounds, exec);
});

}  // namespace
}  // namespace kvpolicy::bench
