// Scorers recency and recency_of_heads: score a token by its position, so that later tokens stay (StreamingLLM).
#pragma once

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::scorers {

/// Scores a token by its position: later tokens score higher (StreamingLLM's rolling cache).
/// @tparam Finest  scope::request: one list for all heads; scope::head: one for each, for a budget that differs by head
template <scope Finest>
struct basic_recency {
  static constexpr signals needs = signals::none;
  static constexpr scope granularity = Finest;
  static constexpr scored of = scored::tokens;
  static constexpr bool after_attention = false;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  template <class Input, executor Exec>
  void score(Input const&, table<float> out, Exec&) const {
    for (std::int64_t h = 0; h < out.rows; ++h) {
      for (std::int64_t token = 0; token < out.columns; ++token) out(h, token) = static_cast<float>(token);
    }
  }

  template <class Input, executor Exec>
  void score_kept(Input const&, std::span<range_list const> lists, table<float> out, Exec&) const {
    for (std::size_t l = 0; l < lists.size(); ++l) {
      std::int64_t const count = token_count(lists[l]);
      for (std::int64_t i = 0; i < count; ++i) out(static_cast<std::int64_t>(l), i) = static_cast<float>(i);
    }
  }
};

using recency = basic_recency<scope::request>;
using recency_of_heads = basic_recency<scope::head>;

static_assert(evicting_scorer<recency> && evicting_scorer<recency_of_heads>);

}  // namespace kvpolicy::scorers
