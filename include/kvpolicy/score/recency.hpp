// Score: the later, the more it matters (StreamingLLM's rolling cache).
#pragma once

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::score {

struct recency {
  static constexpr signals needs = signals::none;
  static constexpr scope how_fine = scope::request;

  template <class Input, executor Exec>
  void score(Input const&, table<float> out, Exec&) const {
    for (std::int64_t unit = 0; unit < out.columns; ++unit) out(0, unit) = static_cast<float>(unit);
  }
};

static_assert(scorer<recency>);

}  // namespace kvpolicy::score
