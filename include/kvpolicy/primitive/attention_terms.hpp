// The terms that some models add to attention: soft cap, slopes, sinks, window.
#pragma once

#include <cstdint>

namespace kvpolicy {

/// Terms that some models add to the softmax of scale q.k. They apply in this order: cap, slope, window, sink.
struct attention_terms {
  float soft_cap = 0;             ///< logits become soft_cap tanh(logit / soft_cap); 0: logits stay (Gemma 2)
  float const* slopes = nullptr;  ///< `[q_heads]`, or null; a logit gets slope * (row of the key - row of the query) (ALiBi)
  float const* sinks = nullptr;   ///< `[q_heads]`, or null; one more logit, whose value is zero (gpt-oss)
  std::int64_t window = 0;        ///< attend_block alone: rows that a token sees, its own included; 0: all up to its own

  /// Whether nothing is added to any logit or sum. The window is not considered.
  constexpr bool plain() const noexcept { return soft_cap == 0 && slopes == nullptr && sinks == nullptr; }
};

}  // namespace kvpolicy
