// An engine's int32 page table from a step's lists, written on the device in stream order: FlashInfer's indices, vLLM's and
// SGLang's rows, TensorRT-LLM's block offsets and sparse indices.
#pragma once

#include <algorithm>
#include <string>

#include "kvpolicy/gpu/attention/lists.hpp"
#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/interop/table_entries.hpp"

namespace kvpolicy::gpu {

/// The engine's own tables of each sequence, on the device.
struct own_tables {
  buffer<std::int32_t const>
      pages;  ///< `[sequences, stride]` pages or slots (table_entries::by_slot); none: entries are logical
  std::int64_t stride = 0;
  buffer<std::int32_t const> value_pages{};  ///< the same for values, where they have tables of their own
};

/// Where a table's rows lie, one for each sequence, or for each of its heads where heads are folded. Row (s, h) begins at
/// s sequence_stride + h head_stride and has room for `most` entries; or, with indptr, at indptr[s indptr_rows + h] + h
/// head_stride (without the h in indptr where indptr_rows is 1), and has exactly as many as indptr says.
struct table_rows {
  buffer<std::int32_t> entries;
  std::int64_t sequence_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t most = 0;
  std::int64_t value_offset = 0;  ///< from a row of keys' pages to the row of its values', where they have their own
  buffer<std::int32_t const> indptr{};
  std::int32_t indptr_rows = 1;             ///< of a sequence
  buffer<std::int32_t> lengths{};           ///< `[rows]` tokens; or none
  buffer<std::int32_t> last_page_tokens{};  ///< `[rows]` of the last entry, 0 where there is none; or none
  buffer<std::int32_t> misfits;             ///< `[1]` counts what the table can't say: read it after a step to be sure
};

namespace detail {

/// One thread an entry. A list that is not made of whole entries, or has more than there is room for (or others than indptr
/// says), is counted in misfits; what does not fit is not written.
struct page_table_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "page_table";
  struct arguments {
    token_lists lists;
    table_entries how;
    own_tables own;
    table_rows to;
    std::int64_t pool_pages = 0;
    row_map rows;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    if (!a.rows.has(block, block.z())) return;
    std::int64_t const sequence = a.rows.of(block, block.z());  // of the engine's tables
    std::int64_t const head = block.y();
    list_reader<B> const list(block, a.lists, block.z(), block.y());
    auto const covered = static_cast<std::int32_t>(a.how.tokens);
    auto const page_size = static_cast<std::int32_t>(a.how.page_size);
    auto const count = static_cast<std::int32_t>(list.count());
    std::int32_t const wanted = (count + covered - 1) / covered;
    std::int64_t begin = sequence * a.to.sequence_stride;
    auto room = static_cast<std::int32_t>(a.to.most);
    bool misfit = wanted > room;
    if (a.to.indptr.data != nullptr) {
      auto const indptr = block.global(a.to.indptr);
      std::int64_t const nth = sequence * a.to.indptr_rows + (a.to.indptr_rows == 1 ? 0 : head);
      std::int32_t const first = indptr[nth];
      std::int32_t const next = indptr[nth + 1];
      begin = first;
      room = next - first;
      misfit = wanted != room;
    }
    begin += head * a.to.head_stride;
    std::int64_t const j = index_in_grid(block);
    if (j == 0) {
      std::int64_t const row = sequence * a.how.rows + head;
      if (a.to.lengths.data != nullptr) block.global(a.to.lengths)[row] = count;
      if (a.to.last_page_tokens.data != nullptr)
        block.global(a.to.last_page_tokens)[row] = wanted == 0 ? 0 : count - (wanted - 1) * covered;
      if (misfit) block.global(a.to.misfits).atomic_add(0, 1);
    }
    if (j >= wanted || j >= room) return;
    auto const nth = static_cast<std::int32_t>(j) * covered;
    std::int32_t const last = nth + covered < count ? nth + covered - 1 : count - 1;
    auto const token = static_cast<std::int32_t>(list.token(nth));
    // Tokens ascend and differ: as far apart as they are many, they are neighbours.
    std::int64_t const end = list.token(last) + 1;
    bool part = token % covered != 0 || end - token != last + 1 - nth;
    // Nobody says how much of a logical page is listed: its reader takes all that there is.
    if (a.own.pages.data == nullptr && end % covered != 0) part = part || end != a.lists.tokens.of(block, block.z());
    if (part) block.global(a.to.misfits).atomic_add(0, 1);
    auto const entries = block.global(a.to.entries);
    entries[begin + j] = entry(block, a, a.own.pages, sequence, head, token, page_size);
    if (a.own.value_pages.data != nullptr)
      entries[begin + j + a.to.value_offset] = entry(block, a, a.own.value_pages, sequence, head, token, page_size);
  }

 private:
  /// As table_row::entry on the host.
  template <class B>
  KVPOLICY_KERNEL static std::int32_t entry(B& block, arguments const& a, buffer<std::int32_t const> const& pages,
                                            std::int64_t sequence, std::int64_t head, std::int32_t token,
                                            std::int32_t page_size) {
    std::int32_t page = token / page_size;
    std::int32_t slot = token - page * page_size;
    if (pages.data != nullptr) {
      std::int32_t const named = block.global(pages)[sequence * a.own.stride + (a.how.by_slot ? token : page)];
      page = a.how.by_slot ? named / page_size : named;
      if (a.how.by_slot) slot = named - page * page_size;
      bool const there = named >= 0 && page < a.pool_pages;
      if (!there || (a.how.by_slot && a.how.tokens > 1 && slot != 0)) block.global(a.to.misfits).atomic_add(0, 1);
      if (!there) page = slot = 0;  // a reader stays within the pool
    }
    return static_cast<std::int32_t>(page * a.how.of_page + head * a.how.of_head + slot * a.how.of_slot);
  }
};

}  // namespace detail

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
/// engine's page numbers; where a decoder's rows move, `rows` are its rows(). Throws invalid_value where lists are by head and
/// the table has a row for all, and where an entry could be more than an int32.
template <device D>
void launch_page_table(D& device, token_lists const& lists, table_entries const& how, own_tables const& own,
                       table_rows const& to, std::int64_t sequences, std::int64_t most_tokens, std::int64_t pool_pages,
                       row_map const& rows = {}) {
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
  device.template launch<detail::page_table_body>({divided_up(entries, detail::page_table_body::threads), how.rows, sequences},
                                                  {lists, how, own, to, pool_pages, rows});
}

}  // namespace kvpolicy::gpu
