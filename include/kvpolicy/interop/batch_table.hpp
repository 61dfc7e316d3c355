// The rows of a batch's page table, as every engine's emitter counts and writes them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvpolicy/interop/page_table.hpp"
#include "kvpolicy/interop/table_entries.hpp"

namespace kvpolicy {

/// One sequence of a batch, as an emitter reads it: what was chosen of it, and the engine's own table of its pages.
struct paged_sequence {
  selection kept;                               ///< of the layer that the table is for
  std::int64_t tokens = 0;                      ///< that it has now; 0: nobody is there
  std::span<std::int32_t const> pages;          ///< `[ceil(tokens / page_size)]`, or `[tokens]` slots (table_entries::by_slot)
  std::span<std::int32_t const> value_pages{};  ///< the same of its values, where they have a table of their own
};

/// Rows of the batch's table.
inline std::int64_t row_count(std::span<paged_sequence const> batch, table_entries const& how) noexcept {
  return std::ssize(batch) * how.rows;
}

/// One row of a batch's table.
struct table_row {
  std::int64_t index = 0;
  std::int64_t sequence = 0;
  std::int64_t head = 0;  ///< 0 where all heads share the row
  paged_sequence const& of;
  range_list const& list;

  /// The entry of the page (or token) that begins with this token.
  std::int64_t entry(table_entries const& how, std::span<std::int32_t const> pages, std::int64_t token) const noexcept {
    std::int64_t page = pages[static_cast<std::size_t>(how.by_slot ? token : token / how.page_size)];
    std::int64_t slot = token % how.page_size;
    if (how.by_slot) {
      slot = page % how.page_size;
      page /= how.page_size;
    }
    return page * how.of_page + head * how.of_head + slot * how.of_slot;
  }

  /// Counts the row's entries and checks each. Throws invalid_value where the list is not made of whole entries, reaches behind
  /// the sequence's tokens or table, or where an entry is none that 31 bits hold.
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

  /// Writes the entries of a row that was counted.
  void write(table_entries const& how, std::span<std::int32_t const> pages, std::int32_t* out) const {
    each_page(list, how.tokens,
              [&](std::int64_t first, std::int64_t) { *out++ = static_cast<std::int32_t>(entry(how, pages, first)); });
  }

 private:
  std::string name() const { return "sequence " + std::to_string(sequence) + ", list of KV head " + std::to_string(head); }

  void check(table_entries const& how, std::span<std::int32_t const> pages, std::int64_t first, std::int64_t tokens) const {
    std::int64_t const last = first + tokens - 1;
    KVPOLICY_EXPECTS(last < of.tokens,
                     name() + ": token " + std::to_string(last) + " of " + std::to_string(of.tokens) + " that are there");
    KVPOLICY_EXPECTS((how.by_slot ? last : last / how.page_size) < std::ssize(pages),
                     name() + ": token " + std::to_string(last) + " lies behind a page table of " +
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

/// Visits a batch's rows in order: sequence by sequence, folded heads within. A sequence of no tokens has an empty list.
/// Throws invalid_value where lists are by head and rows are not, or of other heads than the table's.
template <class Visit>
void each_row(std::span<paged_sequence const> batch, table_entries const& how, Visit visit) {
  range_list const nothing;
  for (std::size_t s = 0; s < batch.size(); ++s) {
    paged_sequence const& of = batch[s];
    auto const sequence = static_cast<std::int64_t>(s);
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

/// Writes tables of rows of one length, with the tokens of each row: what vLLM and SGLang read. `entries` is `[rows, most]`;
/// what lies behind a row's entries stays as it is; `lengths` is `[rows]`. Throws before anything is written: invalid_value as
/// counted() and each_row(), and where a row has more entries than there are columns, or the arrays have other sizes.
inline void write_rows(std::span<paged_sequence const> batch, table_entries const& how, table<std::int32_t> entries,
                       std::span<std::int32_t> lengths) {
  std::int64_t const wanted = row_count(batch, how);
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
