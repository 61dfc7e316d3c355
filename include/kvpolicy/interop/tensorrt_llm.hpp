// TensorRT-LLM's block pool: its view, block offsets for its attention, and the results of its sparse hooks.
// Format: cpp/tensorrt_llm/kernels/{kvCacheUtils,sparseAttentionKernels}.*; "Sparse Attention Development Guide".
#pragma once

#include "kvpolicy/interop/batch_table.hpp"

namespace kvpolicy::tensorrt_llm {

/// Views a pool of blocks `[blocks, kv_heads, tokens_per_block, head_dim]`; a token's key and value lie in different blocks.
/// @param cache  shape of a sequence's cache
/// @param tokens_per_block  tokens of a block
/// @param pool  the pool of layer 0
/// @param layer_stride  bytes from one layer to the next
/// @return a view of 0 tokens; the caller sets `token_count`, and `pages` and `value_pages` to rows 0 and 1 of the sequence's
///        block offsets `[2, max_blocks]`
/// @throws invalid_value if `tokens_per_block` is not a power of two
template <class Memory = host_memory>
constexpr paged_view<Memory> view(cache_shape const& cache, std::int64_t tokens_per_block, element_pointer pool,
                                  std::int64_t layer_stride = 0) {
  KVPOLICY_EXPECTS(tokens_per_block >= 1 && (tokens_per_block & (tokens_per_block - 1)) == 0,
                   "blocks of " + std::to_string(tokens_per_block) + " tokens; TensorRT-LLM's are powers of two");
  byte_strides const strides = strides_of(page_layout::hnd, cache, tokens_per_block, layer_stride);
  return {.cache = cache,
          .key_base = pool,
          .value_base = pool,
          .key_strides = strides,
          .value_strides = strides,
          .page_size = tokens_per_block};
}

/// Writes kv_cache_block_offsets and sequence lengths. Row 0 of each pair names the blocks of keys, row 1 those of values.
/// An exception comes before anything is written.
/// @param batch  `[B * W]` sequences, W beams each
/// @param how  the table's layout
/// @param max_blocks  entries that a row has room for
/// @param block_offsets  `[B, W, 2, max_blocks]`; what follows a row's entries stays as it was
/// @param sequence_lengths  `[B * W]` tokens
/// @throws invalid_value as write_rows() does, and if a sequence has no value_pages
inline void emit(std::span<paged_sequence const> batch, table_entries const& how, std::int64_t max_blocks,
                 std::span<std::int32_t> block_offsets, std::span<std::int32_t> sequence_lengths) {
  std::int64_t const wanted = row_count(batch, how);
  KVPOLICY_EXPECTS(std::ssize(block_offsets) >= wanted * 2 * max_blocks,
                   "block offsets of " + std::to_string(block_offsets.size()) + " for " + std::to_string(wanted) + " x 2 x " +
                       std::to_string(max_blocks));
  for (paged_sequence const& of : batch) {
    KVPOLICY_EXPECTS(of.tokens == 0 || !of.value_pages.empty(),
                     "a sequence without value_pages; they are row 1 of its block offsets");
  }
  write_rows(batch, how, {block_offsets.data(), wanted, max_blocks, 2 * max_blocks}, sequence_lengths);
  each_row(batch, how, [&](table_row const& row) {
    row.write(how, row.of.value_pages, block_offsets.data() + (2 * row.index + 1) * max_blocks);
  });
}

/// Writes what a sparse_attn_predict hook returns, with sparse_attn_indices_block_size = tokens_per_block.
/// The engine reads a head's indices as a set, so a head with fewer blocks repeats its last one. An exception comes before
/// anything is written.
/// @param batch  the sequences
/// @param tokens_per_block  tokens of a block
/// @param indices  sparse_attn_indices `[kv_heads, columns]`: the logical blocks of each KV head, ascending
/// @param offsets  sparse_attn_offsets `[batch + 1]`, the same for all heads
/// @return the columns used
/// @throws invalid_value if a list is not whole blocks up to the sequence's end, if one head of a sequence reads nothing while
///        another reads, if a selection has other KV heads than `indices`, or if an array has the wrong size
inline std::int64_t sparse_indices(std::span<paged_sequence const> batch, std::int64_t tokens_per_block,
                                   table<std::int32_t> indices, std::span<std::int32_t> offsets) {
  KVPOLICY_EXPECTS(std::ssize(offsets) == std::ssize(batch) + 1, "offsets has " + std::to_string(offsets.size()) +
                                                                     " elements; " + std::to_string(batch.size()) +
                                                                     " sequences need one more than there are sequences");
  KVPOLICY_EXPECTS(tokens_per_block >= 1, "blocks of " + std::to_string(tokens_per_block) + " tokens");
  check_rows_apart(indices);
  std::int64_t const heads = indices.rows;
  auto const most_of = [&](paged_sequence const& of) {
    std::int64_t most = 0;
    std::int64_t least = INT64_MAX;
    for (std::int64_t h = 0; of.tokens > 0 && h < heads; ++h) {
      KVPOLICY_EXPECTS(of.kept.kv_heads() == heads, "a sequence chosen for " + std::to_string(of.kept.kv_heads()) +
                                                        " KV heads; the table is for " + std::to_string(heads));
      std::int64_t count = 0;
      each_page(of.kept.of({h}), tokens_per_block, [&](std::int64_t first, std::int64_t tokens) {
        ++count;
        KVPOLICY_EXPECTS(first + tokens <= of.tokens && (tokens == tokens_per_block || first + tokens == of.tokens),
                         "tokens " + std::to_string(first) + ".." + std::to_string(first + tokens) + " of " +
                             std::to_string(of.tokens) + " cover only a part of a block; TensorRT-LLM reads whole blocks");
      });
      most = std::max(most, count);
      least = std::min(least, count);
    }
    KVPOLICY_EXPECTS(most == 0 || least > 0, "a KV head that reads nothing beside one that reads " + std::to_string(most) +
                                                 " blocks; let the policy keep a recent page in every head");
    return most;
  };
  std::int64_t columns = 0;
  for (paged_sequence const& of : batch) columns += most_of(of);
  KVPOLICY_EXPECTS(columns <= indices.columns, "each head needs " + std::to_string(columns) + " indices; there is room for " +
                                                   std::to_string(indices.columns));
  std::int64_t at = 0;
  for (std::size_t s = 0; s < batch.size(); ++s) {
    paged_sequence const& of = batch[s];
    std::int64_t const most = most_of(of);
    offsets[s] = static_cast<std::int32_t>(at);
    for (std::int64_t h = 0; most > 0 && h < heads; ++h) {
      std::int64_t i = at;
      each_page(of.kept.of({h}), tokens_per_block, [&](std::int64_t first, std::int64_t) {
        indices(h, i++) = static_cast<std::int32_t>(first / tokens_per_block);
      });
      for (; i < at + most; ++i) indices(h, i) = indices(h, i - 1);
    }
    at += most;
  }
  offsets[batch.size()] = static_cast<std::int32_t>(at);
  return columns;
}

}  // namespace kvpolicy::tensorrt_llm
