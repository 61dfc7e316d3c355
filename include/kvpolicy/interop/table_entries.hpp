// What one entry of an engine's page table stands for: a page or a token, of all KV heads or of one.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>

#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// What an entry covers: a whole page, or one token. The latter is a page of 1, for lists that are not made of pages.
enum class entry_size : std::uint8_t { page, token };

/// Which heads read a row of the table: all of a sequence's (shared), or one (folded).
/// Folded heads are sequences of one head each: row `s * kv_heads + h` is KV head h of sequence s, read by its query heads.
enum class head_rows : std::uint8_t { shared, folded };

/// How a table's entries are counted.
/// An entry is `page * of_page + head * of_head + slot * of_slot`. The cache is not copied: the engine gets the same memory as
/// a pool with page stride `key_stride` (and `value_stride`); strides of tokens, heads and channels stay.
struct table_entries {
  std::int64_t page_size = 0;     ///< tokens of the engine's pages
  std::int64_t tokens = 0;        ///< tokens that an entry covers: page_size, or 1
  std::int64_t kv_heads = 0;      ///< a sequence's KV heads
  std::int64_t rows = 1;          ///< rows of the table for each sequence: 1, or kv_heads
  std::int64_t of_page = 1;       ///< entries from one page to the next
  std::int64_t of_head = 0;       ///< entries from one head to the next
  std::int64_t of_slot = 0;       ///< entries from one token of a page to the next
  std::int64_t key_stride = 0;    ///< bytes between entries e and e + 1
  std::int64_t value_stride = 0;  ///< the same for values
  bool by_slot = false;           ///< the sequences' own tables name each token's slot (page * page_size + place), not pages

  bool operator==(table_entries const&) const = default;

  /// Finds the largest unit of bytes that divides the strides of pages (and heads, and tokens), and counts these in it.
  /// @param s  strides of keys or values
  /// @param size  what an entry covers
  /// @param heads  whether heads are folded
  /// @return of_page, of_head, of_slot and key_stride; the other members stay unset
  /// @throws invalid_value if there is no page stride
  static table_entries counted_by(byte_strides const& s, entry_size size, head_rows heads) {
    std::int64_t unit = s.page;
    if (heads == head_rows::folded) unit = std::gcd(unit, s.head);
    if (size == entry_size::token) unit = std::gcd(unit, s.token);
    KVPOLICY_EXPECTS(unit > 0, "a pool without a page stride has no page table; set byte_strides::page");
    return {.of_page = s.page / unit,
            .of_head = heads == head_rows::folded ? s.head / unit : 0,
            .of_slot = size == entry_size::token ? s.token / unit : 0,
            .key_stride = unit};
  }
};

/// Makes the entries for an engine's pool.
/// With folded heads an entry is `page * H + h` for pages `[H, N, D]`, and `page * N * H + h` for pages `[N, H, D]`.
/// @param pool  a view of the engine's pool
/// @param size  what an entry covers
/// @param heads  whether heads are folded
/// @return the table's layout
/// @throws invalid_value if the pool has no pages
/// @throws unsupported if one entry can't name both keys and values, because they lie differently; for entries of one token,
///        also if rows are packed by channels
template <class Memory>
table_entries entries_of(paged_view<Memory> const& pool, entry_size size = entry_size::page,
                         head_rows heads = head_rows::shared) {
  KVPOLICY_EXPECTS(pool.page_size >= 1, "a page of " + std::to_string(pool.page_size) + " tokens; it needs at least 1");
  if (size == entry_size::token && (pool.key_strides.pack != 0 || pool.value_strides.pack != 0)) {
    throw unsupported("rows in runs of " + std::to_string(std::max(pool.key_strides.pack, pool.value_strides.pack)) +
                      " channels can't be read as pages of one token; choose with a policy that selects whole pages");
  }
  table_entries made = table_entries::counted_by(pool.key_strides, size, heads);
  table_entries const values = table_entries::counted_by(pool.value_strides, size, heads);
  if (made.of_page != values.of_page || made.of_head != values.of_head || made.of_slot != values.of_slot) {
    throw unsupported("keys and values lie differently (an entry would be page * " + std::to_string(made.of_page) +
                      " + head * " + std::to_string(made.of_head) + " + slot * " + std::to_string(made.of_slot) +
                      " for keys, " + std::to_string(values.of_page) + ", " + std::to_string(values.of_head) + ", " +
                      std::to_string(values.of_slot) + " for values); emit whole pages for all heads");
  }
  made.page_size = pool.page_size;
  made.tokens = size == entry_size::page ? pool.page_size : 1;
  made.kv_heads = pool.cache.kv_heads;
  made.rows = heads == head_rows::folded ? pool.cache.kv_heads : 1;
  made.value_stride = values.key_stride;
  return made;
}

}  // namespace kvpolicy
