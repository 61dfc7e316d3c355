// Caches without pages: views of Hugging Face's tensors and of llama.cpp's cells.
#pragma once

#include "kvpolicy/view.hpp"

namespace kvpolicy {

namespace hugging_face {

/// One sequence of DynamicCache or StaticCache: a layer's keys and values are `[B, H, L, D]`, L the tokens that there is `room`
/// for; the bases are those of batch item 0 and of layer 0. `layer_stride` in bytes; layers that lie apart are a
/// layer_table_view. `token_count` is the caller's to set.
template <class Memory = host_memory>
constexpr strided_view<Memory> view(cache_shape const& cache, std::int64_t room, void const* keys, void const* values,
                                    std::int64_t item = 0, std::int64_t layer_stride = 0) noexcept {
  std::int64_t const size = size_of(cache.type);
  std::int64_t const head = room * cache.head_dim * size;
  std::int64_t const first = item * cache.kv_heads * head;
  byte_strides const strides{.layer = layer_stride, .head = head, .token = cache.head_dim * size, .dim = size};
  return {.cache = cache,
          .key_base = static_cast<std::byte const*>(keys) + first,
          .value_base = static_cast<std::byte const*>(values) + first,
          .key_strides = strides,
          .value_strides = strides};
}

}  // namespace hugging_face

namespace llama_cpp {

/// A layer's cells: keys `[cells, H, D]`; values the same, or, `transposed` (without flash attention), `[H, D, cells]`. One
/// sequence that fills the first cells in order; others are ranks of it. (interop/llama.hpp attaches policies to a context;
/// this is for a host that reads the tensors itself.)
template <class Memory = host_memory>
constexpr strided_view<Memory> view(cache_shape const& cache, std::int64_t cells, void const* keys, void const* values,
                                    bool transposed, std::int64_t layer_stride = 0) noexcept {
  std::int64_t const size = size_of(cache.type);
  std::int64_t const row = bytes_of(cache.type, cache.head_dim);
  byte_strides const strides{.layer = layer_stride, .head = row, .token = cache.kv_heads * row, .dim = size};
  byte_strides const turned{.layer = layer_stride, .head = cells * row, .token = size, .dim = cells * size};
  return {.cache = cache,
          .key_base = keys,
          .value_base = values,
          .key_strides = strides,
          .value_strides = transposed ? turned : strides};
}

}  // namespace llama_cpp

}  // namespace kvpolicy
