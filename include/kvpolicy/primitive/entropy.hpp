// Primitive entropy: how uncertain the model is of the next token.
#pragma once

#include <span>

namespace kvpolicy {

/// The uncertainty of p = softmax(logits).
struct uncertainty {
  float entropy = 0;     ///< -sum p log p, in nats
  float varentropy = 0;  ///< sum p (-log p - entropy)^2, in nats squared
};

/// Computes entropy and varentropy of softmax(logits). One pass finds the maximum, one more the sums, in at least fp32.
/// @param logits  `[vocabulary]`, not empty
/// @param exec  the executor
/// @return both numbers; both are NaN if any logit is NaN, or all are -inf
template <class Exec>
uncertainty entropy(std::span<float const> logits, Exec& exec) {
  return exec.entropy(logits);
}

}  // namespace kvpolicy
