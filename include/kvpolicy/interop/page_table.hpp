// From a list of tokens to the physical pages that a paged engine's attention reads. Needs no engine's header.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/selection.hpp"

namespace kvpolicy {

/// How much of a page list was written.
struct page_list {
  std::int64_t count = 0;             ///< pages
  std::int32_t last_page_tokens = 0;  ///< 1..page_size, 0 without a page; all other pages are whole
};

/// Cuts a list into pages.
/// @param list  the tokens
/// @param page_size  tokens of a page
/// @param visit  is called as `visit(first, tokens)` for each page, in the order of the tokens
/// @throws invalid_value if the list is not made of whole pages; its last page may be short
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

/// Finds the pages that no list names: what an engine may free where all of these lists are read through one page table.
/// Pages that are not full stay, as the next tokens go there.
/// @param retained  what a policy retains, request::retained(), of each layer that the table serves
/// @param tokens  tokens of the sequence
/// @param page_size  tokens of a page
/// @return entries of the page table, ascending
/// @throws invalid_value without a selection, or if a list names tokens that the sequence does not have
inline std::vector<std::int32_t> freeable_pages(std::span<selection const> retained, std::int64_t tokens,
                                                std::int64_t page_size) {
  KVPOLICY_EXPECTS(page_size >= 1, "a page of " + std::to_string(page_size) + " tokens; it needs at least 1");
  KVPOLICY_EXPECTS(!retained.empty(), "no selection; give what the policy retains in each layer that the page table serves");
  std::vector<bool> named(static_cast<std::size_t>(std::max<std::int64_t>(0, tokens) / page_size));
  for (selection const& of_layer : retained) {
    for (std::int64_t h = 0; h < (of_layer.granularity() == scope::head ? of_layer.kv_heads() : 1); ++h) {
      for (auto const& [begin, end, why] : of_layer.of({h})) {
        KVPOLICY_EXPECTS(begin >= 0 && end <= tokens, "tokens " + std::to_string(begin) + ".." + std::to_string(end) +
                                                          " are retained of a sequence of " + std::to_string(tokens));
        for (std::int64_t p = begin / page_size; p < std::min((end + page_size - 1) / page_size, std::ssize(named)); ++p)
          named[static_cast<std::size_t>(p)] = true;
      }
    }
  }
  std::vector<std::int32_t> made;
  for (std::size_t p = 0; p < named.size(); ++p)
    if (!named[p]) made.push_back(static_cast<std::int32_t>(p));
  return made;
}

/// Writes the physical pages of one list, in the order of its tokens. Allocates nothing.
/// An exception comes before anything is written.
/// @param list  the tokens
/// @param page_size  tokens of a page
/// @param pages  the engine's table: page of token t at `t / page_size`
/// @param out  receives the pages
/// @return the number of pages, and the tokens of the last one
/// @throws invalid_value if the list is not made of whole pages (its last may be short), if `pages` or `out` is too short for
///        it, or if a page is negative
inline page_list page_table(range_list const& list, std::int64_t page_size, std::span<std::int32_t const> pages,
                            std::span<std::int32_t> out) {
  KVPOLICY_EXPECTS(page_size >= 1, "a page of " + std::to_string(page_size) + " tokens; it needs at least 1");
  page_list counted;
  each_page(list, page_size, [&](std::int64_t first, std::int64_t tokens) {
    KVPOLICY_EXPECTS(first / page_size < std::ssize(pages), "token " + std::to_string(first + tokens - 1) +
                                                                " is past the end of the page table's " +
                                                                std::to_string(pages.size()) + " pages");
    std::int32_t const page = pages[static_cast<std::size_t>(first / page_size)];
    KVPOLICY_EXPECTS(page >= 0, "token " + std::to_string(first) + " is in page " + std::to_string(page) +
                                    " of the page table; give the page that it is in");
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
