// Scorer recency: scores a token by its position, so that later tokens stay (StreamingLLM).
#pragma once

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::scorers {

/// Scores a token by its position: later tokens score higher (StreamingLLM's rolling cache).
struct recency {
  static constexpr signals needs = signals::none;
  static constexpr scope granularity = scope::request;
  static constexpr scored of = scored::tokens;
  static constexpr bool after_attention = false;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  template <class Input, executor Exec>
  void score(Input const&, table<float> out, Exec&) const {
    for (std::int64_t token = 0; token < out.columns; ++token) out(0, token) = static_cast<float>(token);
  }

  template <class Input, executor Exec>
  void score_kept(Input const&, std::span<range_list const> lists, table<float> out, Exec&) const {
    std::int64_t const count = token_count(lists.front());
    for (std::int64_t i = 0; i < count; ++i) out(0, i) = static_cast<float>(i);
  }
};

static_assert(evicting_scorer<recency>);

}  // namespace kvpolicy::scorers
