// The rows of a batch's page table: how the engines' emitters count, check and write them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvpolicy/interop/page_table.hpp"
#include "kvpolicy/interop/table_entries.hpp"

namespace kvpolicy {

/// One sequence of a batch as an emitter reads it: its selection and the engine's own page table.
struct paged_sequence {
  selection kept;                       ///< selection of the layer that the table is for
  std::int64_t tokens = 0;              ///< tokens of the sequence now; 0: an empty slot
  std::span<std::int32_t const> pages;  ///< `[ceil(tokens / page_size)]` pages, or `[tokens]` slots (table_entries::by_slot)
  std::span<std::int32_t const> value_pages{};  ///< the same for values that have a table of their own; else empty
};

/// Returns the number of rows of a batch's table.
/// @param batch  the sequences
/// @param how  the table's layout, from entries_of()
/// @return `batch.size() * how.rows`
inline std::int64_t row_count(std::span<paged_sequence const> batch, table_entries const& how) noexcept {
  return std::ssize(batch) * how.rows;
}

/// One row of a batch's table.
struct table_row {
  std::int64_t index = 0;     ///< the row's index in the table
  std::int64_t sequence = 0;  ///< index in the batch
  std::int64_t head = 0;      ///< KV head; 0 where all heads share the row
  paged_sequence const& of;   ///< the sequence
  range_list const& list;     ///< the tokens that the row names

  /// Returns the entry of the page, or token, that begins with a token. Unchecked.
  /// @param how  the table's layout
  /// @param pages  the sequence's table of keys or values, as paged_sequence::pages
  /// @param token  index in the sequence
  /// @return the entry
  std::int64_t entry(table_entries const& how, std::span<std::int32_t const> pages, std::int64_t token) const noexcept {
    std::int64_t page = pages[static_cast<std::size_t>(how.by_slot ? token : token / how.page_size)];
    std::int64_t slot = token % how.page_size;
    if (how.by_slot) {
      slot = page % how.page_size;
      page /= how.page_size;
    }
    return page * how.of_page + head * how.of_head + slot * how.of_slot;
  }

  /// Counts the row's entries and checks each.
  /// @param how  the table's layout
  /// @return the number of entries, and the tokens of the last one
  /// @throws invalid_value if the list is not made of whole entries, reaches past the sequence's tokens or table, or names
  ///        slots that do not begin a page; or if an entry does not fit in 31 bits
  page_list counted(table_entries const& how) const {
    page_list made;
    each_page(list, how.tokens, [&](std::int64_t first, std::int64_t tokens) {
      check(how, of.pages, first, tokens);
      if (!of.value_pages.empty()) check(how, of.value_pages, first, tokens);
      ++made.count;
      made.last_page_tokens = static_cast<std::int32_t>(tokens);
    });
    return made;
  }

  /// Writes the entries of a row that counted() accepted.
  /// @param how  the table's layout
  /// @param pages  the sequence's table of keys or values
  /// @param out  room for `counted(how).count` entries
  void write(table_entries const& how, std::span<std::int32_t const> pages, std::int32_t* out) const {
    each_page(list, how.tokens,
              [&](std::int64_t first, std::int64_t) { *out++ = static_cast<std::int32_t>(entry(how, pages, first)); });
  }

 private:
  std::string name() const { return "sequence " + std::to_string(sequence) + ", list of KV head " + std::to_string(head); }

  void check(table_entries const& how, std::span<std::int32_t const> pages, std::int64_t first, std::int64_t tokens) const {
    std::int64_t const last = first + tokens - 1;
    KVPOLICY_EXPECTS(last < of.tokens, name() + " names token " + std::to_string(last) + ", but the sequence has " +
                                           std::to_string(of.tokens) + " tokens");
    KVPOLICY_EXPECTS((how.by_slot ? last : last / how.page_size) < std::ssize(pages),
                     name() + ": token " + std::to_string(last) + " is past the end of a page table of " +
                         std::to_string(pages.size()) + " entries");
    std::int64_t const value = entry(how, pages, first);
    std::int64_t const page = pages[static_cast<std::size_t>(how.by_slot ? first : first / how.page_size)];
    KVPOLICY_EXPECTS(page >= 0 && value <= INT32_MAX,
                     name() + ": page " + std::to_string(page) + " has the entry " + std::to_string(value) +
                         ", which no int32 table holds; give each layer or rank a smaller pool");
    KVPOLICY_EXPECTS(!how.by_slot || how.tokens == 1 || page % how.page_size == 0,
                     name() + ": token " + std::to_string(first) + " is in slot " + std::to_string(page) +
                         ", not at the beginning of a page of " + std::to_string(how.page_size));
  }
};

/// Visits a batch's rows in order: sequence by sequence, and head by head within one whose heads are folded.
/// A sequence without tokens has an empty list.
/// @param batch  the sequences
/// @param how  the table's layout
/// @param visit  is called as `visit(table_row const&)`
/// @throws invalid_value if heads have lists of their own but share a row, or if a selection has other KV heads than the table
template <class Visit>
void each_row(std::span<paged_sequence const> batch, table_entries const& how, Visit visit) {
  range_list const nothing;
  for (std::size_t s = 0; s < batch.size(); ++s) {
    paged_sequence const& of = batch[s];
    auto const sequence = static_cast<std::int64_t>(s);
    KVPOLICY_EXPECTS(of.tokens > 0 || of.kept.tokens() == 0,
                     "sequence " + std::to_string(s) + " has 0 tokens and a selection of " + std::to_string(of.kept.tokens()) +
                         "; set paged_sequence::tokens");
    if (of.tokens > 0) {
      KVPOLICY_EXPECTS(
          how.rows > 1 || std::ssize(of.kept.lists()) == 1,
          "sequence " + std::to_string(s) + " has " + std::to_string(of.kept.lists().size()) +
              " lists, one for each KV head, and the table one row; fold heads into the batch (head_rows::folded)");
      KVPOLICY_EXPECTS(of.kept.kv_heads() == how.kv_heads && !of.kept.lists().empty(),
                       "sequence " + std::to_string(s) + " was chosen for " + std::to_string(of.kept.kv_heads()) +
                           " KV heads; the table is for " + std::to_string(how.kv_heads));
    }
    for (std::int64_t h = 0; h < how.rows; ++h) {
      visit(table_row{sequence * how.rows + h, sequence, h, of, of.tokens > 0 ? of.kept.of({h}) : nothing});
    }
  }
}

/// Checks that a table's rows do not overlap.
/// @param entries  the table
/// @throws invalid_value if they do
inline void check_rows_apart(table<std::int32_t> entries) {
  KVPOLICY_EXPECTS(entries.rows <= 1 || entries.row_stride >= entries.columns,
                   "a table of " + std::to_string(entries.rows) + " rows with row_stride " +
                       std::to_string(entries.row_stride) + "; it must be at least its columns, " +
                       std::to_string(entries.columns));
}

/// Writes a table whose rows have equal room, and the tokens of each row: what vLLM and SGLang read.
/// An exception comes before anything is written.
/// @param batch  the sequences
/// @param how  the table's layout
/// @param entries  `[rows, most]`; what follows a row's entries stays as it was
/// @param lengths  `[rows]` tokens
/// @throws invalid_value as table_row::counted() and each_row() do, if a row has too many entries, or if an array is too short
inline void write_rows(std::span<paged_sequence const> batch, table_entries const& how, table<std::int32_t> entries,
                       std::span<std::int32_t> lengths) {
  std::int64_t const wanted = row_count(batch, how);
  check_rows_apart(entries);
  KVPOLICY_EXPECTS(entries.rows >= wanted && std::ssize(lengths) >= wanted,
                   "a table of " + std::to_string(entries.rows) + " rows and " + std::to_string(lengths.size()) +
                       " lengths for " + std::to_string(wanted) + " rows");
  each_row(batch, how, [&](table_row const& row) {
    std::int64_t const count = row.counted(how).count;
    KVPOLICY_EXPECTS(count <= entries.columns, "row " + std::to_string(row.index) + " has " + std::to_string(count) +
                                                   " entries; there is room for " + std::to_string(entries.columns));
  });
  each_row(batch, how, [&](table_row const& row) {
    row.write(how, row.of.pages, entries.row(row.index));
    lengths[static_cast<std::size_t>(row.index)] = static_cast<std::int32_t>(token_count(row.list));
  });
}

}  // namespace kvpolicy
