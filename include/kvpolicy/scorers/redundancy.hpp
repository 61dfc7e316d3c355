// Scorer redundancy: scores a token by how much its key repeats other keys of its head (R-KV).
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "kvpolicy/primitive/kept_scores.hpp"
#include "kvpolicy/score_input.hpp"

namespace kvpolicy::scorers {

/// Scores a token by how much its key repeats the other keys of its list: the softmax over the list of key_redundancy() (R-KV,
/// Cai et al. 2025). The scores of a list sum to 1. Large ones are what can go: give them a negative weight (weighted_sum).
struct redundancy {
  static constexpr signals needs = signals::keys;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;
  static constexpr bool after_attention = true;

  float alike = .5f;  ///< cosine, at least 0, above which a later token stands for an earlier one

  /// One range: every token that is scored.
  struct memory : no_memory {
    range_list all;
  };
  memory start(cache_shape const&) const {
    KVPOLICY_EXPECTS(alike >= 0, "alike is a cosine of " + std::to_string(alike) + "; it must be at least 0");
    return {{}, range_list(1)};
  }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    input.memory.all.clear();
    append(input.memory.all, 0, input.tokens, reason::scored);
    out.columns = input.tokens;
    score_kept(input, std::span<range_list const>(&input.memory.all, 1), out, exec);
  }
  template <class Input, executor Exec>
  void score_kept(Input const& input, std::span<range_list const> lists, table<float> out, Exec& exec) const {
    key_redundancy(input.keys(), lists, alike, out, exec);
    for (std::int64_t h = 0; h < out.rows; ++h) {
      std::span const row(out.row(h), static_cast<std::size_t>(token_count(list_of(lists, h))));
      float total = 0;
      for (float& x : row) total += x = std::exp(x);  // a mean of cosines: at most 1
      for (float& x : row) x /= total;
    }
  }
};

static_assert(evicting_scorer<redundancy>);

}  // namespace kvpolicy::scorers
