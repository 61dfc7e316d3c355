// Scorer key_similarity: scores a token by how little its key resembles the other keys of its head (KeyDiff).
#pragma once

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::scorers {

/// Scores a token by how little its key resembles the other keys of its head (KeyDiff, Park et al. 2025, arXiv 2504.15364).
struct key_similarity {
  static constexpr signals needs = signals::keys;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  /// Writes minus the cosine between a key and the mean direction of all keys, protected ones included.
  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    out.columns = input.tokens;
    kvpolicy::key_similarity(input.keys(), out, exec);
    for (std::int64_t h = 0; h < out.rows; ++h) {
      for (std::int64_t t = 0; t < out.columns; ++t) out(h, t) = -out(h, t);
    }
  }
};

static_assert(scorer<key_similarity>);

}  // namespace kvpolicy::scorers
