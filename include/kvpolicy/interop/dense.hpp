// Views of caches without pages: Hugging Face's tensors and llama.cpp's cells.
#pragma once

#include <algorithm>

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
/// @param keys,values  layer 0, batch item 0; at the same address values are the first channels of key rows
/// @param item  the sequence's index in the batch
/// @param layer_stride  bytes from one layer to the next
/// @return a view of 0 tokens; the caller sets `token_count`
/// @throws invalid_value for layers that overlap
template <class Memory = host_memory>
constexpr strided_view<Memory> view(cache_shape const& cache, std::int64_t room, element_pointer keys, element_pointer values,
                                    std::int64_t item = 0, std::int64_t layer_stride = 0) {
  std::int64_t const size = size_of(cache.type);
  std::int64_t const row = bytes_of(cache.type, cache.head_dim);
  std::int64_t const value_row = bytes_of(cache.type, layout_of_values(cache, keys, values).head_dim);
  check_layers_apart(layer_stride, cache.kv_heads * room * std::max(row, value_row));
  std::int64_t const first = item * cache.kv_heads * room;
  return {.cache = cache,
          .key_base = keys.behind(first * row),
          .value_base = values.behind(first * value_row),
          .key_strides = {.layer = layer_stride, .head = room * row, .token = row, .dim = size},
          .value_strides = {.layer = layer_stride, .head = room * value_row, .token = value_row, .dim = size}};
}

}  // namespace hugging_face

namespace llama_cpp {

/// Views a sequence that fills the first cells in order. Other sequences need an indexed_view of this one.
/// This is for a host that reads the tensors itself; interop/llama.hpp attaches policies to a context.
/// @param cache  shape of the sequence's cache
/// @param cells  cells of a layer
/// @param keys  layer 0, `[cells, kv_heads, head_dim]`
/// @param values  layer 0, `[cells, kv_heads, value_dim]`; `[kv_heads, value_dim, cells]` if `transposed`; at the keys' address
///                the first channels of their rows
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
  std::int64_t const value_row = bytes_of(cache.type, layout_of_values(cache, keys, values).head_dim);
  check_layers_apart(layer_stride, cells * cache.kv_heads * std::max(row, value_row));
  byte_strides const by_token{.layer = layer_stride, .head = value_row, .token = cache.kv_heads * value_row, .dim = size};
  byte_strides const by_channel{.layer = layer_stride, .head = cells * value_row, .token = size, .dim = cells * size};
  return {.cache = cache,
          .key_base = keys,
          .value_base = values,
          .key_strides = {.layer = layer_stride, .head = row, .token = cache.kv_heads * row, .dim = size},
          .value_strides = transposed ? by_channel : by_token};
}

}  // namespace llama_cpp

}  // namespace kvpolicy
