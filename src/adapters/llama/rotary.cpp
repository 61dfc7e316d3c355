#include "rotary.hpp"

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
  auto const* const factors = rope->src[2] != nullptr ? static_cast<float const*>(rope->src[2]->data) : nullptr;
  for (std::int32_t i = 0; i < pairs; ++i) {
    double const base = std::pow(static_cast<double>(parameter(5)), -static_cast<double>(i) / pairs);
    frequency_[static_cast<std::size_t>(i)] = static_cast<float>(base * static_cast<double>(parameter(6)) /
                                                                 (factors != nullptr ? static_cast<double>(factors[i]) : 1.0));
  }
}

rotation rotary::embedding() const noexcept { return {frequency_.data(), std::ssize(frequency_), pairing_}; }

}  // namespace kvpolicy::llama
