// Views of caches without pages: Hugging Face's tensors and llama.cpp's cells.
#pragma once

#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// Checks the distance between layers.
/// @param layer_stride  bytes; 0: each layer has a view of its own
/// @param bytes  of a layer
/// @throws invalid_value if layers overlap
constexpr void check_layers_apart(std::int64_t layer_stride, std::int64_t bytes) {
  KVPOLICY_EXPECTS(layer_stride == 0 || layer_stride >= bytes, "layer_stride is " + std::to_string(layer_stride) +
                                                                   " bytes, a layer has " + std::to_string(bytes) +
                                                                   "; give bytes, not elements");
}

namespace hugging_face {

/// Views one sequence of a DynamicCache or a StaticCache, whose layers are tensors `[batch, kv_heads, room, head_dim]`.
/// Where layers are separate tensors, make one view for each, or a layer_table_view.
/// @param cache  shape of the sequence's cache
/// @param room  tokens that a tensor has room for
/// @param keys,values  layer 0, batch item 0
/// @param item  the sequence's index in the batch
/// @param layer_stride  bytes from one layer to the next
/// @return a view of 0 tokens; the caller sets `token_count`
/// @throws invalid_value for layers that overlap
template <class Memory = host_memory>
constexpr strided_view<Memory> view(cache_shape const& cache, std::int64_t room, element_pointer keys, element_pointer values,
                                    std::int64_t item = 0, std::int64_t layer_stride = 0) {
  std::int64_t const size = size_of(cache.type);
  std::int64_t const row = bytes_of(cache.type, cache.head_dim);
  std::int64_t const head = room * row;
  check_layers_apart(layer_stride, cache.kv_heads * head);
  std::int64_t const first = item * cache.kv_heads * head;
  byte_strides const strides{.layer = layer_stride, .head = head, .token = row, .dim = size};
  return {.cache = cache,
          .key_base = keys.behind(first),
          .value_base = values.behind(first),
          .key_strides = strides,
          .value_strides = strides};
}

}  // namespace hugging_face

namespace llama_cpp {

/// Views a sequence that fills the first cells in order. Other sequences need an indexed_view of this one.
/// This is for a host that reads the tensors itself; interop/llama.hpp attaches policies to a context.
/// @param cache  shape of the sequence's cache
/// @param cells  cells of a layer
/// @param keys  layer 0, `[cells, kv_heads, head_dim]`
/// @param values  layer 0, as the keys; or `[kv_heads, head_dim, cells]` if `transposed`
/// @param transposed  whether values are transposed, as without flash attention
/// @param layer_stride  bytes from one layer to the next
/// @return a view of 0 tokens; the caller sets `token_count`
/// @throws invalid_value for layers that overlap, or transposed values of a type whose elements are in blocks
template <class Memory = host_memory>
constexpr strided_view<Memory> view(cache_shape const& cache, std::int64_t cells, element_pointer keys, element_pointer values,
                                    bool transposed, std::int64_t layer_stride = 0) {
  KVPOLICY_EXPECTS(!transposed || elements_of_block(cache.type) == 1,
                   std::string(name_of(cache.type)) + " values can't be transposed: their elements are in blocks");
  std::int64_t const size = size_of(cache.type);
  std::int64_t const row = bytes_of(cache.type, cache.head_dim);
  check_layers_apart(layer_stride, cells * cache.kv_heads * row);
  byte_strides const strides{.layer = layer_stride, .head = row, .token = cache.kv_heads * row, .dim = size};
  byte_strides const by_channel{.layer = layer_stride, .head = cells * row, .token = size, .dim = cells * size};
  return {.cache = cache,
          .key_base = keys,
          .value_base = values,
          .key_strides = strides,
          .value_strides = transposed ? by_channel : strides};
}

}  // namespace llama_cpp

}  // namespace kvpolicy
