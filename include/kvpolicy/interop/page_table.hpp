// From a selection to physical pages: what a paged engine's attention reads. No engine's header is needed.
#pragma once

#include <span>
#include <string>

#include "kvpolicy/selection.hpp"

namespace kvpolicy {

/// How much of a page list was written.
struct page_list {
  std::int64_t count = 0;             ///< pages
  std::int32_t last_page_tokens = 0;  ///< tokens of the last page, 1..page_size; all others are whole
};

/// Writes the physical pages of one list, in the order of its tokens: pages[t / page_size] for every page that holds
/// tokens of the list. Throws invalid_value where the list is not made of whole pages (but for the last), where the
/// engine's table is shorter than the list, or where `out` is too small. Allocates nothing.
inline page_list page_table(range_list const& list, std::int64_t page_size, std::span<std::int32_t const> pages,
                            std::span<std::int32_t> out) {
  KVPOLICY_EXPECTS(page_size >= 1, "a page of " + std::to_string(page_size) + " tokens; it needs at least 1");
  page_list written;
  for (std::size_t i = 0; i < list.size();) {
    std::int64_t const begin = list[i].begin;
    std::int64_t end = list[i].end;
    for (++i; i < list.size() && list[i].begin == end; ++i) end = list[i].end;  // reasons differ, pages don't
    bool const last = i == list.size();
    KVPOLICY_EXPECTS(begin % page_size == 0 && (last || end % page_size == 0),
                     "tokens " + std::to_string(begin) + ".." + std::to_string(end) + " are not whole pages of " +
                         std::to_string(page_size) + "; only policies that select pages of this size have a page table");
    std::int64_t const last_page = (end - 1) / page_size;
    KVPOLICY_EXPECTS(last_page < std::ssize(pages), "token " + std::to_string(end - 1) + " lies behind the page table's " +
                                                        std::to_string(pages.size()) + " pages");
    for (std::int64_t page = begin / page_size; page <= last_page; ++page) {
      KVPOLICY_EXPECTS(written.count < std::ssize(out),
                       "the list has more pages than the " + std::to_string(out.size()) + " that there is room for");
      out[static_cast<std::size_t>(written.count++)] = pages[static_cast<std::size_t>(page)];
    }
    written.last_page_tokens = static_cast<std::int32_t>(end - last_page * page_size);
  }
  return written;
}

}  // namespace kvpolicy
