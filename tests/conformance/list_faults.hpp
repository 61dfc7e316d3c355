// Lists of tokens, and what is wrong with them.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kvpolicy/selection.hpp"

namespace kvpolicy_test {

using namespace kvpolicy;

using lists_copy = std::vector<range_list>;

inline lists_copy copy_of(selection const& kept) { return {kept.lists().begin(), kept.lists().end()}; }

inline bool reads(range_list const& list, std::int64_t token) {
  return std::any_of(list.begin(), list.end(), [&](token_range const& r) { return r.begin <= token && token < r.end; });
}
inline bool reads_all(range_list const& list, std::int64_t first, std::int64_t last) {
  for (std::int64_t t = first; t < last; ++t) {
    if (!reads(list, t)) return false;
  }
  return true;
}

/// Whether every token of `few` is one of `many`.
inline bool within(range_list const& few, range_list const& many) {
  return std::all_of(few.begin(), few.end(), [&](token_range const& r) { return reads_all(many, r.begin, r.end); });
}

/// Empty where the list is ascending, disjoint, in range, without empty ranges or ranges that should be one.
inline std::string fault_of(range_list const& list, std::int64_t tokens) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].begin < end) return "overlaps or descends";
    if (list[i].end <= list[i].begin) return "an empty range";
    if (list[i].end > tokens) return "out of range";
    if (i > 0 && list[i].begin == end && list[i].why == list[i - 1].why) return "two ranges that are one";
    end = list[i].end;
  }
  return list.empty() || end != tokens ? "the current token is missing" : "";
}

}  // namespace kvpolicy_test
