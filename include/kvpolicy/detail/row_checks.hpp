// Whether rows and queries lie as they can: what a forgotten or mistaken stride would otherwise read in silence.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/queries.hpp"
#include "kvpolicy/rows.hpp"
#include "kvpolicy/selection.hpp"

namespace kvpolicy {

/// Throws unsupported: a needed signal is missing.
[[noreturn]] inline void missing(char const* signal, char const* field) {
  throw unsupported(std::string("the policy needs ") + signal + ", and was given none: set " + field);
}

/// Queries do not overlap. Throws invalid_value.
template <class Queries>
void check_query_strides(Queries const& queries, std::int64_t head_dim, char const* field) {
  auto const refuse_below = [&](std::int64_t count, std::int64_t stride, std::int64_t least, char const* which,
                                char const* why) {
    KVPOLICY_EXPECTS(count <= 1 || stride >= least, std::string(field) + "." + which + " is " + std::to_string(stride) +
                                                        " floats; it must be at least " + std::to_string(least) + ", " + why);
  };
  refuse_below(queries.heads, queries.head_stride, head_dim, "head_stride", "head_dim");
  if constexpr (requires { queries.token_stride; }) {
    refuse_below(queries.tokens, queries.token_stride, head_dim, "token_stride", "head_dim");
    if (queries.heads <= 1 || queries.tokens <= 1) return;
    if (queries.token_stride >= queries.head_stride) {
      refuse_below(2, queries.token_stride, (queries.heads - 1) * queries.head_stride + head_dim, "token_stride",
                   "what a token's heads take");
    } else {
      refuse_below(2, queries.head_stride, (queries.tokens - 1) * queries.token_stride + head_dim, "head_stride",
                   "what a head's tokens take");
    }
  }
}

/// The distances between rows are such that no two elements share an address. Throws invalid_value.
template <class Memory>
void check_strides(basic_rows<Memory> const& given, char const* what, std::int64_t layer = -1, std::int64_t layers = 1,
                   std::int64_t layer_stride = 0) {
  auto const refuse = [&](char const* which, std::int64_t bytes, std::int64_t least, char const* why) {
    throw invalid_value(what + (layer < 0 ? "" : " of layer " + std::to_string(layer)) + ": byte_strides::" + which + " is " +
                        std::to_string(bytes) + " bytes; it must be at least " + std::to_string(least) + why +
                        " (strides are in bytes)");
  };
  std::int64_t const element = size_of(given.type);
  if (given.pages == nullptr && given.page_size != 0) missing("the view's page table", "paged_view::pages");
  KVPOLICY_EXPECTS(given.pages == nullptr || given.page_size > 0,
                   std::string(what) + " have pages of " + std::to_string(given.page_size) +
                       " tokens; set paged_view::page_size to the tokens of a page");
  if (given.dim_stride < element) refuse("dim", given.dim_stride, element, ", an element's size");
  bool const whole = given.contiguous();
  bool const paged = given.pages != nullptr;
  struct axis {
    char const* name;
    std::int64_t count;
    std::int64_t stride;
  };
  std::array<axis, 4> axes{axis{"token", paged ? std::min(given.tokens, given.page_size) : given.tokens, given.token_stride},
                           axis{"head", given.page_table_stride == 0 ? given.heads : 1, given.head_stride},
                           axis{"page", paged ? (given.tokens + given.page_size - 1) / given.page_size : 1, given.page_stride},
                           axis{"layer", layer_stride == 0 ? 1 : layers, layer_stride}};
  if (paged && axes[2].count > 1) axes[0].count = given.page_size;
  // From the smallest stride on, each axis steps over all that those before it reach. Rows that are no single run may
  // interleave.
  std::int64_t reach = whole ? bytes_of(given.type, given.head_dim) : element;
  char const* why = whole ? ", a row's size" : ", an element's size";
  std::ranges::sort(axes, {}, &axis::stride);
  for (axis const& one : axes) {
    if (one.count <= 1) continue;
    if (one.stride < reach) refuse(one.name, one.stride, reach, why);
    if (!whole) continue;
    reach += one.stride * (one.count - 1);
    why = ", what lies within";
  }
}

/// Indices ascend, and name tokens below `most`. Throws invalid_value.
inline void check_indices(basic_rows<host_memory> const& given, std::int64_t most) {
  if (given.indices == nullptr) return;
  for (std::int64_t head = 0; head < (given.index_stride == 0 ? 1 : given.heads); ++head) {
    std::int32_t before = -1;
    for (std::int64_t i = 0; i < given.tokens; ++i) {
      std::int32_t const index = given.indices[head * given.index_stride + i];
      KVPOLICY_EXPECTS(index > before && index < most, "the view's index " + std::to_string(i) + " is " +
                                                           std::to_string(index) + ", behind " + std::to_string(before) +
                                                           "; indices ascend, from 0 to below " + std::to_string(most));
      before = index;
    }
  }
}

/// Keys and values are not the same rows. Throws invalid_value.
template <class Memory>
void check_apart(basic_rows<Memory> const& keys, basic_rows<Memory> const& values) {
  KVPOLICY_EXPECTS(keys.base != values.base || keys.pages != values.pages || keys.head_dim != values.head_dim,
                   "keys and values are the same rows; set the values' pointer, or their page table (value_base, value_pages)");
}

/// No page of keys lies on one of values, as where a pool of both is read by the stride of one. Throws invalid_value.
inline void check_pools_apart(basic_rows<host_memory> const& keys, basic_rows<host_memory> const& values) {
  bool const alike = values.pages == keys.pages && values.page_stride == keys.page_stride;
  if (keys.pages == nullptr || keys.page_table_stride != 0 || !alike || keys.tokens < 1) return;
  std::span const table(keys.pages, static_cast<std::size_t>((keys.tokens - 1) / keys.page_size + 1));
  std::int64_t const last = *std::ranges::max_element(table);
  auto const at = [](rows const& of) { return reinterpret_cast<std::intptr_t>(of.base); };
  std::int64_t const distance = std::abs(at(keys) - at(values));
  if (distance < keys.page_stride || distance > last * keys.page_stride || distance % keys.page_stride != 0) return;
  std::vector<char> used(static_cast<std::size_t>(last + 1));
  for (std::int32_t const page : table) used[static_cast<std::size_t>(std::max(page, 0))] |= page >= 0;
  std::int64_t const behind = distance / keys.page_stride;
  for (std::int32_t const page : table) {
    KVPOLICY_EXPECTS(page < 0 || page + behind > last || used[static_cast<std::size_t>(page + behind)] == 0,
                     "the view's values begin " + std::to_string(distance) +
                         " bytes from its keys, within the pages of keys: " + "byte_strides::page is " +
                         std::to_string(keys.page_stride) + "; if a page holds both, set it to the bytes that both take");
  }
}

/// Every row has a page. Throws invalid_value.
inline void check_pages(basic_rows<host_memory> const& given) {
  if (given.pages == nullptr || given.indices != nullptr || given.tokens < 1) return;
  std::int64_t const count = (given.tokens - 1) / given.page_size + 1;
  for (std::int64_t head = 0; head < (given.page_table_stride == 0 ? 1 : given.heads); ++head) {
    std::int32_t const* const table = given.pages + head * given.page_table_stride;
    std::int32_t const* const none = std::find_if(table, table + count, [](std::int32_t page) { return page < 0; });
    KVPOLICY_EXPECTS(none == table + count, "the view's page table has " + std::to_string(none == table + count ? 0 : *none) +
                                                " at entry " + std::to_string(none - table) + " of " + std::to_string(count) +
                                                "; give the page of each row, or name the rows that are there in "
                                                "prompt_signals::resident");
  }
}

/// Of the tokens of a head's list that are among the first `tokens`, the last `count` have a page. Throws invalid_value.
inline void check_read_pages(basic_rows<host_memory> const& given, std::int64_t head, range_list const& list, char const* what,
                             std::int64_t tokens = INT64_MAX, std::int64_t count = INT64_MAX) {
  if (given.pages == nullptr || given.indices != nullptr) return;
  std::int32_t const* const table = given.pages + head * given.page_table_stride;
  std::int32_t const* newest = nullptr;  // entry of the last token that is read
  for (std::size_t r = list.size(); r-- > 0 && count > 0;) {
    std::int64_t const last = std::min<std::int64_t>(list[r].end, tokens);
    std::int64_t const first = std::max<std::int64_t>(list[r].begin, last - count);
    if (first >= last) continue;
    count -= last - first;
    std::int32_t const* const end = table + (last - 1) / given.page_size + 1;
    if (newest == nullptr) newest = end - 1;
    for (std::int32_t const* entry = table + first / given.page_size; entry != std::min(end, newest); ++entry) {
      KVPOLICY_EXPECTS(*entry != *newest || *entry < 0,
                       std::string(what) + " of KV head " + std::to_string(head) + " have page " + std::to_string(*entry) +
                           " at entries " + std::to_string(entry - table) + " and " + std::to_string(newest - table) +
                           " of the page table; the page of the last tokens holds no others");
    }
    KVPOLICY_EXPECTS(std::none_of(table + first / given.page_size, end, [](std::int32_t page) { return page < 0; }),
                     std::string(what) + " of KV head " + std::to_string(head) + " have no page for some of tokens " +
                         std::to_string(first) + " to " + std::to_string(last - 1) +
                         ": their rows were dropped, or moved to a tier; fetch them (resident_rows::ready, or after a cut "
                         "bring and mend_cut), or read what the store's own policy kept");
  }
}

/// Every token that a selection names has a page. Throws invalid_value.
inline void check_read_pages(basic_rows<host_memory> const& given, selection const& kept, char const* what) {
  bool const one = kept.granularity() != scope::head && given.page_table_stride == 0;
  for (std::int64_t head = 0; head < (one ? 1 : given.heads); ++head) check_read_pages(given, head, kept.of({head}), what);
}

/// The last tokens have a page. Throws invalid_value.
inline void check_newest_page(basic_rows<host_memory> const& given) {
  if (given.pages == nullptr || given.indices != nullptr || given.tokens < 1) return;
  std::int64_t const last = (given.tokens - 1) / given.page_size;
  for (std::int64_t head = 0; head < (given.page_table_stride == 0 ? 1 : given.heads); ++head) {
    std::int32_t const page = given.pages[head * given.page_table_stride + last];
    KVPOLICY_EXPECTS(page >= 0, "the view's page table has " + std::to_string(page) + " at entry " + std::to_string(last) +
                                    ", the last tokens' page; give the page that they are in");
  }
}

/// The last page holds the last tokens alone, as it does not in a table that was not filled to its end. Earlier entries may
/// repeat: an engine may put one page where all rows were dropped. Throws invalid_value.
inline void check_last_page(basic_rows<host_memory> const& given) {
  check_newest_page(given);
  if (given.pages == nullptr || given.indices != nullptr || given.tokens < 1) return;
  std::int64_t const last = (given.tokens - 1) / given.page_size;
  for (std::int64_t head = 0; head < (given.page_table_stride == 0 ? 1 : given.heads); ++head) {
    std::int32_t const* const table = given.pages + head * given.page_table_stride;
    std::int32_t const* const same = std::find(table, table + last, table[last]);
    KVPOLICY_EXPECTS(same == table + last, "the view's page table names page " + std::to_string(table[last]) + " at entries " +
                                               std::to_string(same - table) + " and " + std::to_string(last) +
                                               "; the page of the last tokens holds no others");
  }
}

}  // namespace kvpolicy
