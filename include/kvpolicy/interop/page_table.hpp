// From a list of tokens to physical pages: what a paged engine's attention reads. No engine's header is needed.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "kvpolicy/selection.hpp"

namespace kvpolicy {

/// How much of a page list was written.
struct page_list {
  std::int64_t count = 0;             ///< pages
  std::int32_t last_page_tokens = 0;  ///< tokens of the last page, 1..page_size; all others are whole. 0 where there is none
};

/// Cuts a list into pages: visit(first token, tokens) for each, in the order of the tokens. Throws invalid_value where the
/// list is not made of whole pages, but for the end of the last one.
template <class Visit>
void each_page(range_list const& list, std::int64_t page_size, Visit visit) {
  for (std::size_t i = 0; i < list.size();) {
    std::int64_t const begin = list[i].begin;
    std::int64_t end = list[i].end;
    for (++i; i < list.size() && list[i].begin == end; ++i) end = list[i].end;  // reasons differ, pages don't
    KVPOLICY_EXPECTS(begin % page_size == 0 && (i == list.size() || end % page_size == 0),
                     "tokens " + std::to_string(begin) + ".." + std::to_string(end) + " are not whole pages of " +
                         std::to_string(page_size) +
                         "; choose with a policy that selects pages of this size, or emit entries " +
                         "of one token (entries_of(view, entry_size::token)) for an engine that reads pages of 1");
    for (std::int64_t t = begin; t < end; t += page_size) visit(t, std::min(page_size, end - t));
  }
}

/// Writes the physical pages of one list, in the order of its tokens: pages[t / page_size] for every page that holds
/// tokens of the list. Throws invalid_value where the list is not made of whole pages (but for the last), where the
/// engine's table is shorter than the list, or where `out` is too small; then nothing was written. Allocates nothing.
inline page_list page_table(range_list const& list, std::int64_t page_size, std::span<std::int32_t const> pages,
                            std::span<std::int32_t> out) {
  KVPOLICY_EXPECTS(page_size >= 1, "a page of " + std::to_string(page_size) + " tokens; it needs at least 1");
  page_list counted;
  each_page(list, page_size, [&](std::int64_t first, std::int64_t tokens) {
    KVPOLICY_EXPECTS(first / page_size < std::ssize(pages), "token " + std::to_string(first + tokens - 1) +
                                                                " lies behind the page table's " +
                                                                std::to_string(pages.size()) + " pages");
    ++counted.count;
    counted.last_page_tokens = static_cast<std::int32_t>(tokens);
  });
  KVPOLICY_EXPECTS(counted.count <= std::ssize(out),
                   "the list has " + std::to_string(counted.count) + " pages; there is room for " + std::to_string(out.size()));
  std::size_t at = 0;
  each_page(list, page_size,
            [&](std::int64_t first, std::int64_t) { out[at++] = pages[static_cast<std::size_t>(first / page_size)]; });
  return counted;
}

}  // namespace kvpolicy
