#include "rotary.hpp"

#include <ggml-backend.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "kvpolicy/error.hpp"

namespace kvpolicy::llama {

void rotary::learn(ggml_tensor const* rope) {
  auto const parameter = [&](int at) {
    float value = 0;
    std::memcpy(&value, rope->op_params + at, sizeof value);
    return value;
  };
  std::int32_t const pairs = rope->op_params[1] / 2;
  std::int32_t const mode = rope->op_params[2];
  if (mode != GGML_ROPE_TYPE_NORMAL && mode != GGML_ROPE_TYPE_NEOX) {
    throw unsupported("the policy needs the rotary embedding, and this model's is of kind " + std::to_string(mode) +
                      "; plain ones are supported (NORMAL and NEOX)");
  }
  if (parameter(7) != 0 || parameter(8) != 1) {
    throw unsupported("the policy needs the rotary embedding, and this model's is scaled by YaRN, which is not supported");
  }
  frequency_.resize(static_cast<std::size_t>(pairs));
  pairing_ = mode == GGML_ROPE_TYPE_NEOX ? rotation::pairing::halves : rotation::pairing::neighbours;
  std::vector<float> factors(frequency_.size(), 1);
  if (rope->src[2] != nullptr) ggml_backend_tensor_get(rope->src[2], factors.data(), 0, factors.size() * sizeof(float));
  for (std::int32_t i = 0; i < pairs; ++i) {
    double const base = std::pow(static_cast<double>(parameter(5)), -static_cast<double>(i) / pairs);
    frequency_[static_cast<std::size_t>(i)] = static_cast<float>(base * static_cast<double>(parameter(6)) /
                                                                 static_cast<double>(factors[static_cast<std::size_t>(i)]));
  }
}

rotation rotary::embedding() const noexcept { return {frequency_.data(), std::ssize(frequency_), pairing_}; }

}  // namespace kvpolicy::llama
