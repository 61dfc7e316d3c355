// FlashInfer's paged KV cache: views of its pools, and the indptr, indices and last_page_len that its decode reads.
// Format: docs.flashinfer.ai, "KV-Cache Layout" and BatchDecodeWithPagedKVCacheWrapper (0.6).
#pragma once

#include "kvpolicy/interop/batch_table.hpp"

namespace kvpolicy::flashinfer {

/// Keys and values in pools of their own: `[P, N, H, D]` (NHD) or `[P, H, N, D]` (HND). `layer_stride` in bytes; 0 where each
/// layer is a view of its own. The view's `pages` and `token_count` are the caller's to set.
template <class Memory = host_memory>
constexpr paged_view<Memory> view(page_layout how, cache_shape const& cache, std::int64_t page_size, void const* keys,
                                  void const* values, std::int64_t layer_stride = 0) noexcept {
  byte_strides const strides = strides_of(how, cache, page_size, layer_stride);
  return {.cache = cache,
          .key_base = keys,
          .value_base = values,
          .key_strides = strides,
          .value_strides = strides,
          .page_size = page_size};
}

/// Keys and values in one pool: `[P, 2, N, H, D]` or `[P, 2, H, N, D]`.
template <class Memory = host_memory>
constexpr paged_view<Memory> packed_view(page_layout how, cache_shape const& cache, std::int64_t page_size, void const* pool,
                                         std::int64_t layer_stride = 0) noexcept {
  paged_view<Memory> made = view<Memory>(how, cache, page_size, pool, pool, layer_stride);
  made.value_base = static_cast<std::byte const*>(pool) + made.key_strides.page;
  made.key_strides.page *= 2;
  made.value_strides.page *= 2;
  return made;
}

/// The arrays of a batch, FlashInfer's names; rows are sequences, or (sequence, KV head) pairs where heads are folded.
struct page_arrays {
  std::span<std::int32_t> indptr;         ///< `[rows + 1]`
  std::span<std::int32_t> indices;        ///< `[nnz]`, or longer
  std::span<std::int32_t> last_page_len;  ///< `[rows]`, 1..page_size; 0 where a row reads nothing
};

/// indptr and last_page_len alone: all that plan() needs to know, from the host's lists, without a read-back. Returns nnz, the
/// entries that indices will have; a plan holds for all layers and steps that have the same counts. Throws as emit() does.
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

/// All three. Returns nnz. Keys and values share the entries, so value_pages must be empty. Throws before anything is written:
/// invalid_value as table_row::counted and each_row, or where an array is too small.
inline std::int64_t emit(std::span<paged_sequence const> batch, table_entries const& how, page_arrays const& out) {
  std::int64_t entries = 0;
  each_row(batch, how, [&](table_row const& row) {
    entries += row.counted(how).count;
    KVPOLICY_EXPECTS(row.of.value_pages.empty(), "sequence " + std::to_string(row.sequence) +
                                                     " has a page table of its own for values; FlashInfer has one");
  });
  KVPOLICY_EXPECTS(entries <= std::ssize(out.indices),
                   std::to_string(entries) + " entries for indices of " + std::to_string(out.indices.size()));
  page_counts(batch, how, out.indptr, out.last_page_len);
  each_row(batch, how, [&](table_row const& row) {
    row.write(how, row.of.pages, out.indices.data() + out.indptr[static_cast<std::size_t>(row.index)]);
  });
  return entries;
}

}  // namespace kvpolicy::flashinfer
