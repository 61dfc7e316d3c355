// SGLang's token pool: a view of its slots, and the page_table and cache_seqlens that its FA3 and FA4 backends read.
// Format: sglang/srt/layers/attention/flashattention_backend.py, mem_cache/memory_pool.py (req_to_token).
#pragma once

#include "kvpolicy/interop/batch_table.hpp"

namespace kvpolicy::sglang {

/// Views pools of slots, `[slots, kv_heads, head_dim]` for keys and for values, as pages of one token.
/// @param cache  shape of a sequence's cache
/// @param keys,values  the pools of layer 0; at the same address values are the first channels of key rows
/// @param layer_stride  bytes from one layer to the next
/// @return a view of 0 tokens; the caller sets `token_count`, and `pages` to the request's row of req_to_token
template <class Memory = host_memory>
constexpr paged_view<Memory> view(cache_shape const& cache, element_pointer keys, element_pointer values,
                                  std::int64_t layer_stride = 0) noexcept {
  return {.cache = cache,
          .key_base = keys,
          .value_base = values,
          .key_strides = strides_of(page_layout::nhd, cache, 1, layer_stride),
          .value_strides = strides_of(page_layout::nhd, layout_of_values(cache, keys, values), 1, layer_stride),
          .page_size = 1};
}

/// Makes entries for the backend's page size from a view of slots. paged_sequence::pages are then rows of req_to_token.
/// An entry is `slot / page_size` of a page's first token: the slot itself for pages of 1. With folded heads an entry is
/// `page * page_size * H + h`: for pages of 1 that is `slot * H + h`.
/// @param slots  a view from view()
/// @param page_size  tokens of the backend's pages
/// @param heads  whether all heads share a row
/// @return the table's layout
/// @throws invalid_value if `slots` has pages of more than one token; else as kvpolicy::entries_of()
template <class Memory>
table_entries entries_of(paged_view<Memory> slots, std::int64_t page_size, head_rows heads = head_rows::shared) {
  KVPOLICY_EXPECTS(slots.page_size == 1, "a view of pages of " + std::to_string(slots.page_size) + ", not of slots");
  slots.page_size = page_size;
  slots.key_strides.page *= page_size;
  slots.value_strides.page *= page_size;
  table_entries made = kvpolicy::entries_of(slots, entry_size::page, heads);
  made.by_slot = true;
  return made;
}

/// Writes page_table and cache_seqlens. An exception comes before anything is written.
/// @param batch  the sequences
/// @param how  the table's layout, from entries_of()
/// @param page_table  `[rows, max_pages]`
/// @param cache_seqlens  `[rows]` tokens
/// @throws invalid_value as write_rows() does
inline void emit(std::span<paged_sequence const> batch, table_entries const& how, table<std::int32_t> page_table,
                 std::span<std::int32_t> cache_seqlens) {
  write_rows(batch, how, page_table, cache_seqlens);
}

}  // namespace kvpolicy::sglang
