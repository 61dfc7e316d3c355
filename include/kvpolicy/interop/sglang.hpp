// SGLang's token pool: a view of its slots, and the page_table and cache_seqlens that its FA3 and FA4 backends read.
// Format: sglang/srt/layers/attention/flashattention_backend.py, mem_cache/memory_pool.py (req_to_token).
#pragma once

#include "kvpolicy/interop/batch_table.hpp"

namespace kvpolicy::sglang {

/// Pools of slots, `[slots, H, D]` for keys and for values: pages of one token. `pages` is the request's row of req_to_token.
template <class Memory = host_memory>
constexpr paged_view<Memory> view(cache_shape const& cache, void const* keys, void const* values,
                                  std::int64_t layer_stride = 0) noexcept {
  byte_strides const strides = strides_of(page_layout::nhd, cache, 1, layer_stride);
  return {
      .cache = cache, .key_base = keys, .value_base = values, .key_strides = strides, .value_strides = strides, .page_size = 1};
}

/// Entries for the backend's page size: slot / page_size of each page's first token, or, with a size of 1, slots.
/// paged_sequence::pages are rows of req_to_token. Folded heads: slot * H + h for pages of 1, else page * page_size * H + h.
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

/// Writes page_table `[reqs, max_pages]` and cache_seqlens `[reqs]`, int32. Throws as write_rows, before anything is written.
inline void emit(std::span<paged_sequence const> batch, table_entries const& how, table<std::int32_t> page_table,
                 std::span<std::int32_t> cache_seqlens) {
  write_rows(batch, how, page_table, cache_seqlens);
}

}  // namespace kvpolicy::sglang
