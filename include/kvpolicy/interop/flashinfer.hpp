// FlashInfer's paged KV cache: views of its pools, and the indptr, indices and last_page_len that its decode reads.
// Format: docs.flashinfer.ai, "KV-Cache Layout" and BatchDecodeWithPagedKVCacheWrapper (0.6).
#pragma once

#include "kvpolicy/interop/batch_table.hpp"

namespace kvpolicy::flashinfer {

/// Views keys and values that have separate pools.
/// @param how  the pools' layout: NHD `[pages, page_size, kv_heads, head_dim]`, or HND `[pages, kv_heads, page_size, head_dim]`
/// @param cache  shape of a sequence's cache
/// @param page_size  tokens of a page
/// @param keys,values  the pools of layer 0; at the same address values are the first channels of key rows
/// @param layer_stride  bytes from one layer to the next; 0 if each layer has a view of its own
/// @return a view of 0 tokens; the caller sets `pages` and `token_count`
template <class Memory = host_memory>
constexpr paged_view<Memory> view(page_layout how, cache_shape const& cache, std::int64_t page_size, element_pointer keys,
                                  element_pointer values, std::int64_t layer_stride = 0) noexcept {
  return {.cache = cache,
          .key_base = keys,
          .value_base = values,
          .key_strides = strides_of(how, cache, page_size, layer_stride),
          .value_strides = strides_of(how, layout_of_values(cache, keys, values), page_size, layer_stride),
          .page_size = page_size};
}

/// Views keys and values that share one pool.
/// @param how  the layout: NHD `[pages, 2, page_size, kv_heads, head_dim]`, or HND `[pages, 2, kv_heads, page_size, head_dim]`
/// @param cache  shape of a sequence's cache
/// @param page_size  tokens of a page
/// @param pool  the pool of layer 0
/// @param layer_stride  bytes from one layer to the next; 0 if each layer has a view of its own
/// @return a view of 0 tokens; the caller sets `pages` and `token_count`
/// @throws invalid_value if values have another head size than keys
template <class Memory = host_memory>
constexpr paged_view<Memory> packed_view(page_layout how, cache_shape const& cache, std::int64_t page_size,
                                         element_pointer pool, std::int64_t layer_stride = 0) {
  KVPOLICY_EXPECTS(cache.values_dim() == cache.head_dim, "keys of " + std::to_string(cache.head_dim) +
                                                             " channels and values of " + std::to_string(cache.values_dim()) +
                                                             " can't share FlashInfer's packed pool; give view() two pools");
  paged_view<Memory> made = view<Memory>(how, cache, page_size, pool, pool, layer_stride);
  made.value_base = pool.behind(made.key_strides.page);
  made.key_strides.page *= 2;
  made.value_strides.page *= 2;
  return made;
}

/// The arrays of a batch, by FlashInfer's names. A row is a sequence, or a (sequence, KV head) pair where heads are folded.
struct page_arrays {
  std::span<std::int32_t> indptr;         ///< `[rows + 1]`
  std::span<std::int32_t> indices;        ///< `[nnz]` or longer
  std::span<std::int32_t> last_page_len;  ///< `[rows]`, 1..page_size; 0 where a row reads nothing
};

/// Writes indptr and last_page_len alone: all that FlashInfer's plan() needs, from the host's lists and without a read-back.
/// A plan holds for all layers and steps that have the same counts.
/// @param batch  the sequences
/// @param how  the table's layout
/// @param indptr  `[rows + 1]`
/// @param last_page_len  `[rows]`
/// @return nnz: the entries that indices will have
/// @throws invalid_value as emit() does, and if an array has another size or int32 can't count the entries; nothing is written
///        then
inline std::int64_t page_counts(std::span<paged_sequence const> batch, table_entries const& how, std::span<std::int32_t> indptr,
                                std::span<std::int32_t> last_page_len) {
  std::int64_t const wanted = row_count(batch, how);
  KVPOLICY_EXPECTS(std::ssize(indptr) == wanted + 1 && std::ssize(last_page_len) == wanted,
                   "indptr of " + std::to_string(indptr.size()) + " and last_page_len of " +
                       std::to_string(last_page_len.size()) + " for " + std::to_string(wanted) + " rows; they have " +
                       std::to_string(wanted + 1) + " and " + std::to_string(wanted));
  std::int64_t entries = 0;
  each_row(batch, how, [&](table_row const& row) { entries += row.counted(how).count; });
  KVPOLICY_EXPECTS(entries <= INT32_MAX,
                   std::to_string(entries) + " entries, more than int32 indptr counts; emit fewer sequences");
  indptr[0] = 0;
  each_row(batch, how, [&](table_row const& row) {
    auto const r = static_cast<std::size_t>(row.index);
    page_list const counted = row.counted(how);
    indptr[r + 1] = indptr[r] + static_cast<std::int32_t>(counted.count);
    last_page_len[r] = counted.last_page_tokens;
  });
  return entries;
}

/// Writes all three arrays. Keys and values share the entries, so value_pages must be empty.
/// An exception comes before anything is written.
/// @param batch  the sequences
/// @param how  the table's layout
/// @param out  the arrays
/// @return nnz: the entries written to indices
/// @throws invalid_value as table_row::counted() and each_row() do, and for value_pages or an array that is too small
inline std::int64_t emit(std::span<paged_sequence const> batch, table_entries const& how, page_arrays const& out) {
  std::int64_t entries = 0;
  each_row(batch, how, [&](table_row const& row) {
    entries += row.counted(how).count;
    KVPOLICY_EXPECTS(row.of.value_pages.empty(), "sequence " + std::to_string(row.sequence) +
                                                     " has a page table of its own for values; FlashInfer has one");
  });
  KVPOLICY_EXPECTS(entries <= std::ssize(out.indices),
                   std::to_string(entries) + " entries do not fit into indices of " + std::to_string(out.indices.size()));
  page_counts(batch, how, out.indptr, out.last_page_len);
  each_row(batch, how, [&](table_row const& row) {
    row.write(how, row.of.pages, out.indices.data() + out.indptr[static_cast<std::size_t>(row.index)]);
  });
  return entries;
}

}  // namespace kvpolicy::flashinfer
