// A softmax in progress: what every attention keeps of the logits that it has seen.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/base/element.hpp"

namespace kvpolicy::gpu::detail {

/// No logit is as low; weights relative to it are 0 and never NaN.
inline constexpr float no_logit = -1e30f;

/// Weights are powers of e, of logits as they are.
struct powers_of_e {
  KVPOLICY_KERNEL static float of(float x) { return expf(x); }
};
/// Weights are powers of 2, of logits times log2(e).
struct powers_of_two {
  KVPOLICY_KERNEL static float of(float x) { return exp2f(x); }
};
/// The same, and 0 where exp2f would take a longer way to a denormal number.
struct normal_powers_of_two {
  KVPOLICY_KERNEL static float of(float x) { return power_of_two(x); }
};

/// The largest logit, and relative to it the sum of the weights, and of N channels of the weighted values.
template <class Powers, int N = 0>
struct softmax_state {
  float most = no_logit;
  float total = 0;
  float sum[N == 0 ? 1 : N] = {};

  KVPOLICY_KERNEL float weight(float logit) const { return Powers::of(logit - most); }
  /// Makes `more`, not below `most`, the largest logit. Returns what the weights so far shrink by; the caller multiplies them.
  KVPOLICY_KERNEL float raise(float more) {
    float const kept = Powers::of(most - more);
    most = more;
    return kept;
  }
  /// Adds two logits with their values, `value(0, c)` and `value(1, c)`.
  template <class Value>
  KVPOLICY_KERNEL void add(float const (&logits)[2], Value value) {
    float const kept = raise(fmaxf(fmaxf(most, logits[0]), logits[1]));
    float const weights[2] = {weight(logits[0]), weight(logits[1])};
    total = total * kept + (weights[0] + weights[1]);
    KVPOLICY_UNROLL
    for (int c = 0; c < N; ++c) sum[c] = sum[c] * kept + (weights[0] * value(0, c) + weights[1] * value(1, c));
  }
  KVPOLICY_KERNEL void add(float const (&logits)[2]) {
    add(logits, [](int, int) { return 0.0f; });
  }
  /// Adds another part of the same softmax, of which `other_sum(c)` gives the sums.
  template <class Sum>
  KVPOLICY_KERNEL void merge(float other_most, float other_total, Sum other_sum) {
    float const mine = raise(fmaxf(most, other_most));
    float const others = weight(other_most);
    total = total * mine + other_total * others;
    KVPOLICY_UNROLL
    for (int c = 0; c < N; ++c) sum[c] = sum[c] * mine + other_sum(c) * others;
  }
  KVPOLICY_KERNEL void merge(float other_most, float other_total) {
    merge(other_most, other_total, [](int) { return 0.0f; });
  }
  /// Adds the part of the lane whose number differs in `mask`'s bit. Collective.
  template <class Tile>
  KVPOLICY_KERNEL void merge_lane(Tile const& tile, unsigned mask) {
    float const other_most = tile.shfl_xor(most, mask);
    float const other_total = tile.shfl_xor(total, mask);
    merge(other_most, other_total, [&](int c) { return tile.shfl_xor(sum[c], mask); });
  }
};

}  // namespace kvpolicy::gpu::detail
