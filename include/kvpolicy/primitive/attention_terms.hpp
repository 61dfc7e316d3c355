// What some models add to attention.
#pragma once

#include <cstdint>

namespace kvpolicy {

/// What some models add to the softmax of scale q.k; all, in this order: cap, slope, window, sink.
struct attention_terms {
  float soft_cap = 0;             ///< logits become soft_cap tanh(logit / soft_cap); 0: they stay (Gemma 2)
  float const* slopes = nullptr;  ///< `[q_heads]`, or null: logits get slope * (row of the key - row of the query) (ALiBi)
  float const* sinks = nullptr;   ///< `[q_heads]`, or null: a logit that weighs nothing's value, beside the rows' (gpt-oss)
  std::int64_t window = 0;        ///< attend_block's: rows that a token sees, its own the last; 0: all before it

  /// Nothing is added to any logit or sum.
  constexpr bool plain() const noexcept { return soft_cap == 0 && slopes == nullptr && sinks == nullptr; }
};

}  // namespace kvpolicy
