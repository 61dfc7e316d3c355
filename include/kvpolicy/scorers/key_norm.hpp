// Scorer key_norm: scores a token by minus the norm of its key (Knorm).
#pragma once

#include "kvpolicy/concepts.hpp"

namespace kvpolicy::scorers {

/// Scores a token by minus the Euclidean norm of its key (Knorm, Devoto et al. 2024, arXiv 2406.11430).
struct key_norm {
  static constexpr signals needs = signals::keys;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec& exec) const {
    auto keys = input.keys();
    keys.tokens = out.columns;
    row_norms(keys, out, exec);
    for (std::int64_t h = 0; h < out.rows; ++h) {
      for (std::int64_t t = 0; t < out.columns; ++t) out(h, t) = -out(h, t);
    }
  }
};

static_assert(scorer<key_norm>);

}  // namespace kvpolicy::scorers
