// Engines' page tables from a step's lists, written on the device in stream order: nothing is read back.
#pragma once

#include <algorithm>
#include <string>

#include "kvpolicy/gpu/kernel/page_table.hpp"
#include "kvpolicy/gpu/launch/device.hpp"

namespace kvpolicy::gpu {

/// FlashInfer's indices and last_page_len `[rows]`; indptr `[rows + 1]` is what plan() was given, so the host knew the counts
/// (decoder::listed).
inline table_rows flashinfer_rows(table_entries const& how, buffer<std::int32_t const> indptr, buffer<std::int32_t> indices,
                                  buffer<std::int32_t> last_page_len, buffer<std::int32_t> misfits) noexcept {
  table_rows made{};
  made.entries = indices;
  made.indptr = indptr;
  made.indptr_rows = static_cast<std::int32_t>(how.rows);
  made.last_page_tokens = last_page_len;
  made.misfits = misfits;
  return made;
}

/// vLLM's block_table `[rows, most]` and seq_lens `[rows]`, SGLang's page_table and cache_seqlens.
inline table_rows block_table_rows(table_entries const& how, buffer<std::int32_t> block_table, std::int64_t most,
                                   buffer<std::int32_t> seq_lens, buffer<std::int32_t> misfits) noexcept {
  table_rows made{};
  made.entries = block_table;
  made.head_stride = most;
  made.sequence_stride = how.rows * most;
  made.most = most;
  made.lengths = seq_lens;
  made.misfits = misfits;
  return made;
}

/// TensorRT-LLM's block offsets `[rows, 2, most]`, with sequence lengths `[rows]`.
inline table_rows block_offset_rows(table_entries const& how, buffer<std::int32_t> block_offsets, std::int64_t most,
                                    buffer<std::int32_t> lengths, buffer<std::int32_t> misfits) noexcept {
  table_rows made = block_table_rows(how, block_offsets, most, lengths, misfits);
  made.head_stride *= 2;
  made.sequence_stride *= 2;
  made.value_offset = most;
  return made;
}

/// TensorRT-LLM's sparse_attn_indices `[kv_heads, columns]` under sparse_attn_offsets `[sequences + 1]`, which the host knew:
/// every head of a sequence has as many blocks. Entries are logical: own_tables stay empty, and of blocks of N tokens `how` is
/// {.page_size = N, .tokens = N, .kv_heads = H, .rows = H}.
inline table_rows sparse_index_rows(buffer<std::int32_t const> offsets, buffer<std::int32_t> indices, std::int64_t columns,
                                    buffer<std::int32_t> misfits) noexcept {
  table_rows made{};
  made.entries = indices;
  made.head_stride = columns;
  made.indptr = offsets;
  made.misfits = misfits;
  return made;
}

/// Enqueues the table of a step's lists. `most_tokens` bounds every list's length (cache_shape::max_tokens), `pool_pages` the
/// engine's page numbers. Throws invalid_value where lists are by head and the table has a row for all, and where an entry
/// could be more than an int32.
template <device D>
void launch_page_table(D& device, token_lists const& lists, table_entries const& how, own_tables const& own,
                       table_rows const& to, std::int64_t sequences, std::int64_t most_tokens, std::int64_t pool_pages) {
  KVPOLICY_EXPECTS(how.rows > 1 || lists.lists == 1, std::to_string(lists.lists) +
                                                         " lists a sequence, one for each KV head, and a table of one row for "
                                                         "each; fold heads into the batch (head_rows::folded)");
  std::int64_t const highest =
      (pool_pages - 1) * how.of_page + (how.rows - 1) * how.of_head + (how.page_size - 1) * how.of_slot;
  KVPOLICY_EXPECTS(highest <= INT32_MAX, "a pool of " + std::to_string(pool_pages) + " pages has entries up to " +
                                             std::to_string(highest) + ", which no int32 table holds; use smaller pools");
  KVPOLICY_EXPECTS(!how.by_slot || pool_pages <= INT32_MAX / how.page_size,
                   "a pool of " + std::to_string(pool_pages * how.page_size) + " slots; int32 numbers fewer");
  KVPOLICY_EXPECTS(own.pages.data != nullptr || (how.of_page == 1 && how.of_head == 0 && how.of_slot == 0),
                   "no page table, and entries that are more than logical pages; give the engine's, or entries of_page 1");
  if (sequences == 0) return;
  std::int64_t const entries = std::max<std::int64_t>(1, divided_up(most_tokens, how.tokens));
  device.template launch<page_table_body>({divided_up(entries, page_table_body::threads), how.rows, sequences},
                                          {lists, how, own, to, pool_pages});
}

}  // namespace kvpolicy::gpu
