// Primitive entropy: how unsure the model is of the next token.
#pragma once

#include <span>

namespace kvpolicy {

/// Of p = softmax(logits), in nats: entropy = -sum p log p, varentropy = sum p (-log p - entropy)^2.
struct uncertainty {
  float entropy = 0;
  float varentropy = 0;
};

/// `[vocabulary]` logits, not empty; any NaN among them, or nothing but -inf, makes both results NaN. One pass beside the
/// maximum's; sums in at least fp32.
template <class Exec>
uncertainty entropy(std::span<float const> logits, Exec& exec) {
  return exec.entropy(logits);
}

}  // namespace kvpolicy
