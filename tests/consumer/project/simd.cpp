// The compiled executor: it was linked with its Highway.
#include <kvpolicy/exec/simd.hpp>

#include <array>
#include <cmath>
#include <cstdio>

namespace kv = kvpolicy;

int main() {
  kv::simd_exec exec({.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 4, .max_tokens = 16});
  std::array<float, 8> const logits{};
  float const entropy = kv::entropy(logits, exec).entropy;
  std::printf("%s: %f nats\n", kv::simd_exec::instruction_set(), static_cast<double>(entropy));
  return std::abs(entropy - std::log(8.0f)) < 1e-5f ? 0 : 1;
}
