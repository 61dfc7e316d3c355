#include "rotary.hpp"

#include <ggml-backend.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <utility>

#include "kvpolicy/error.hpp"

namespace kvpolicy::llama {
namespace {

struct turned_by {
  ggml_tensor const* rope = nullptr;  ///< null: nothing
  bool last = true;                   ///< nothing but views comes behind it
};

/// Goes back from written keys to the product with weights that they come from.
turned_by find_rope(ggml_tensor const* t) noexcept {
  bool last = true;
  while (t != nullptr && t->op != GGML_OP_ROPE) {
    if (t->op == GGML_OP_CONCAT) {  // a part may be turned, as in latent attention
      for (ggml_tensor const* const part : {t->src[0], t->src[1]})
        if (turned_by const found = find_rope(part); found.rope != nullptr) return {found.rope, false};
      return {};
    }
    bool const by_input = t->op == GGML_OP_MUL_MAT && (t->src[0]->flags & GGML_TENSOR_FLAG_INPUT) != 0;
    if (t->op == GGML_OP_MUL_MAT && !by_input) return {};
    last = last && (t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_CONT);
    t = by_input ? t->src[1] : t->src[0];
  }
  return {t, last};
}

float parameter(ggml_tensor const* rope, int at) noexcept {
  float value = 0;
  std::memcpy(&value, rope->op_params + at, sizeof value);
  return value;
}

/// How much of each pair's frequency is left as it is under YaRN (Peng et al. 2024), whose ramp llama.cpp rounds to whole
/// pairs.
class yarn {
 public:
  explicit yarn(ggml_tensor const* rope) : factor_(parameter(rope, 7)) {
    double const size = rope->op_params[1];
    double const trained = rope->op_params[4];
    auto const pair_of = [&](double turns) {
      return size * std::log(trained / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(static_cast<double>(parameter(rope, 5))));
    };
    low_ = std::max(0., std::floor(pair_of(static_cast<double>(parameter(rope, 9)))));
    high_ = std::min(size - 1, std::ceil(pair_of(static_cast<double>(parameter(rope, 10)))));
  }
  double kept(std::int32_t pair) const noexcept {
    if (factor_ == 0) return 0;
    return (1 - std::clamp((pair - low_) / std::max(.001, high_ - low_), 0., 1.)) * static_cast<double>(factor_);
  }

 private:
  float factor_;
  double low_ = 0;
  double high_ = 0;
};

/// Whether the pair turns by the last of four axes, where text's positions are 0.
bool turns_by_last_axis(ggml_tensor const* rope, std::int32_t pair) noexcept {
  std::array<std::int32_t, 4> sections{};
  std::memcpy(sections.data(), rope->op_params + 11, sizeof sections);
  std::int32_t const sector = pair % std::max(1, sections[0] + sections[1] + sections[2] + sections[3]);
  if (rope->op_params[2] == GGML_ROPE_TYPE_IMROPE) return sector >= 3 * sections[static_cast<std::size_t>(sector % 3)];
  return sector >= sections[0] + sections[1] + sections[2];
}

}  // namespace

void rotary::learn(ggml_tensor const* set_rows, std::int64_t head_dim) {
  turned_by const by = find_rope(set_rows->src[0]);
  std::vector<float> frequency(static_cast<std::size_t>(head_dim / 2), 0);
  rotation::pairing pairing = rotation::pairing::halves;
  bool several_axes = false;
  if (ggml_tensor const* const rope = by.rope; rope != nullptr) {
    std::int32_t const mode = rope->op_params[2];
    several_axes = mode == GGML_ROPE_TYPE_MROPE || mode == GGML_ROPE_TYPE_IMROPE;
    if ((!several_axes && mode != GGML_ROPE_TYPE_NORMAL && mode != GGML_ROPE_TYPE_NEOX) || rope->op_params[15] != 0)
      throw unsupported("the policy needs the rotary embedding, and this model's is of kind " + std::to_string(mode) +
                        " from element " + std::to_string(rope->op_params[15]) +
                        " on; those from element 0 on of kinds NORMAL, NEOX, MROPE and IMROPE are supported");
    if (!by.last)
      throw unsupported(
          "the policy undoes the keys' rotary embedding, and the engine changes keys after rotating them (a norm, the rest of "
          "a latent row, or keys in blocks, which LLAMA_ATTN_ROT_DISABLE=1 leaves as they are); chess and infllm do "
          "without as pre_rope=0");
    // The magnitude by which YaRN multiplies, too, is the same for queries and keys: it stays.
    std::int32_t const pairs = rope->op_params[1] / 2;
    pairing = mode == GGML_ROPE_TYPE_NORMAL ? rotation::pairing::neighbours : rotation::pairing::halves;
    frequency.resize(static_cast<std::size_t>(pairs));
    std::vector<float> factors(frequency.size(), 1);
    if (rope->src[2] != nullptr) ggml_backend_tensor_get(rope->src[2], factors.data(), 0, factors.size() * sizeof(float));
    yarn const stretched(rope);
    for (std::int32_t i = 0; i < pairs; ++i) {
      auto const at = static_cast<std::size_t>(i);
      double const base =
          std::pow(static_cast<double>(parameter(rope, 5)), -static_cast<double>(i) / pairs) / static_cast<double>(factors[at]);
      double const kept = stretched.kept(i);
      frequency[at] = static_cast<float>(base * (kept + (1 - kept) * static_cast<double>(parameter(rope, 6))));
      if (several_axes && turns_by_last_axis(rope, i)) frequency[at] = 0;
    }
  }
  if (known() && (frequency != frequency_ || pairing != pairing_))
    throw unsupported("the policy needs one rotary embedding, and this model's layers have different ones, or some have none");
  frequency_ = std::move(frequency);
  pairing_ = pairing;
  several_axes_ = several_axes;
}

rotation rotary::embedding() const noexcept { return {frequency_.data(), std::ssize(frequency_), pairing_}; }

void rotary::check_text(std::span<std::int32_t const> positions, std::int64_t tokens) const {
  if (!several_axes_ || std::ssize(positions) < 3 * tokens) return;
  auto const axis = [&](std::int64_t of) {
    return positions.subspan(static_cast<std::size_t>(of * tokens), static_cast<std::size_t>(tokens));
  };
  bool const last_is_zero =
      std::ssize(positions) < 4 * tokens || std::ranges::all_of(axis(3), [](std::int32_t at) { return at == 0; });
  if (!std::ranges::equal(axis(0), axis(1)) || !std::ranges::equal(axis(0), axis(2)) || !last_is_zero)
    throw unsupported("the policy undoes the rotary embedding of text, and these tokens have an image's positions");
}

}  // namespace kvpolicy::llama
