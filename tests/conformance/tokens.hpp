// A list's tokens, one by one.
#pragma once

#include <cstdint>
#include <vector>

#include "kvpolicy/selection.hpp"

namespace kvpolicy_test {

inline std::vector<std::int64_t> tokens_of(kvpolicy::range_list const& list) {
  std::vector<std::int64_t> made;
  for (kvpolicy::token_range const& range : list) {
    for (std::int64_t t = range.begin; t < range.end; ++t) made.push_back(t);
  }
  return made;
}

}  // namespace kvpolicy_test
