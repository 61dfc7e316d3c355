// vLLM's paged KV cache: views of its tensors, and the block_table and seq_lens that its attention backends read.
// Format: vllm/v1/attention/backends/flash_attn.py; K and V are packed into the content dimension since 2026-08.
#pragma once

#include "kvpolicy/interop/batch_table.hpp"

namespace kvpolicy::vllm {

/// Views `[layers, blocks, kv_heads, block_size, head_dim + value_dim]`: a row is a token's key, then its value.
/// @param cache  shape of a sequence's cache
/// @param block_size  tokens of a block
/// @param pool  the tensor of layer 0
/// @param layer_stride  bytes from one layer to the next
/// @return a view of 0 tokens; the caller sets `pages` and `token_count`
template <class Memory = host_memory>
constexpr paged_view<Memory> view(cache_shape const& cache, std::int64_t block_size, element_pointer pool,
                                  std::int64_t layer_stride = 0) noexcept {
  std::int64_t const size = size_of(cache.type);
  std::int64_t const key = bytes_of(cache.type, cache.head_dim);
  std::int64_t const row = key + bytes_of(cache.type, cache.values_dim());
  byte_strides const strides{
      .layer = layer_stride, .head = block_size * row, .token = row, .dim = size, .page = cache.kv_heads * block_size * row};
  return {.cache = cache,
          .key_base = pool,
          .value_base = pool.behind(key),
          .key_strides = strides,
          .value_strides = strides,
          .page_size = block_size};
}

/// Views the layout of paged_attention_v1 and v2: keys `[B, H, D/x, N, x]`, values `[B, H, value_dim, N]`.
/// @param cache  shape of a sequence's cache
/// @param block_size  N: tokens of a block
/// @param x  elements in 16 bytes
/// @param keys,values  the tensors of layer 0
/// @param layer_stride  bytes from one layer to the next
/// @return a view of 0 tokens; the caller sets `pages` and `token_count`
/// @throws invalid_value if `x` does not divide the head size
template <class Memory = host_memory>
constexpr paged_view<Memory> x_packed_view(cache_shape const& cache, std::int64_t block_size, std::int64_t x,
                                           element_pointer keys, element_pointer values, std::int64_t layer_stride = 0) {
  KVPOLICY_EXPECTS(x >= 1 && cache.head_dim % x == 0, "runs of " + std::to_string(x) + " channels in rows of " +
                                                          std::to_string(cache.head_dim) + "; x divides the head size");
  std::int64_t const size = size_of(cache.type);
  std::int64_t const head = cache.head_dim * block_size * size;
  byte_strides strides{.layer = layer_stride, .head = head, .page = cache.kv_heads * head};
  paged_view<Memory> made{.cache = cache, .key_base = keys, .value_base = values, .page_size = block_size};
  made.value_strides = strides;
  made.value_strides.head = cache.values_dim() * block_size * size;
  made.value_strides.page = cache.kv_heads * made.value_strides.head;
  made.value_strides.token = size;
  made.value_strides.dim = block_size * size;
  made.key_strides = strides;
  made.key_strides.token = x * size;
  made.key_strides.dim = size;
  made.key_strides.pack = x;
  made.key_strides.pack_stride = block_size * x * size;
  return made;
}

/// Writes block_table and seq_lens. All heads of a request share a row, or each has its own (folded).
/// The backend sees folded heads as requests of one KV head. An exception comes before anything is written.
/// @param batch  the sequences
/// @param how  the table's layout
/// @param block_table  `[rows, max_blocks]`
/// @param seq_lens  `[rows]` tokens
/// @throws invalid_value as write_rows() does
inline void emit(std::span<paged_sequence const> batch, table_entries const& how, table<std::int32_t> block_table,
                 std::span<std::int32_t> seq_lens) {
  write_rows(batch, how, block_table, seq_lens);
}

}  // namespace kvpolicy::vllm
