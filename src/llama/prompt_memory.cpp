#include "prompt_memory.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

namespace kvpolicy::llama {

void prompt_memory::reserve(cache_shape const& shape, std::int64_t queries) {
  shape_ = shape;
  kept_.resize(static_cast<std::size_t>(shape.layers));
  ids_.reserve(static_cast<std::size_t>(shape.max_tokens));
  std::int64_t const room = std::min(queries, shape.max_tokens);
  if (room <= room_) return;
  room_ = room;
  for (span_of_layer& kept : kept_) kept.count = 0;
  queries_.resize(static_cast<std::size_t>(shape.layers * room_ * row()));
}

void prompt_memory::keep(std::int64_t layer, ggml_tensor const* q, written_cells const& cells) {
  span_of_layer& kept = kept_[static_cast<std::size_t>(layer)];
  std::int64_t const old = kept.end == cells.first ? kept.count : 0;
  std::int64_t const fresh = std::min(cells.count, room_);
  std::int64_t const left = std::min(old, room_ - fresh);
  float* const window = queries_.data() + layer * room_ * row();
  if (left < old) std::memmove(window, window + (old - left) * row(), static_cast<std::size_t>(left * row()) * sizeof(float));
  for (std::int64_t i = 0; i < fresh; ++i) {
    std::int64_t const token = cells.count - fresh + i;
    for (std::int64_t h = 0; h < shape_.q_heads; ++h) {
      std::memcpy(window + (left + i) * row() + h * shape_.head_dim,
                  static_cast<char const*>(q->data) + static_cast<std::size_t>(token) * q->nb[1] +
                      static_cast<std::size_t>(h) * q->nb[2],
                  static_cast<std::size_t>(shape_.head_dim) * sizeof(float));
    }
  }
  kept = {left + fresh, cells.first + cells.count};
}

void prompt_memory::keep_ids(std::span<std::int32_t const> ids, std::int64_t first) {
  ids_.resize(static_cast<std::size_t>(std::min<std::int64_t>(first, std::ssize(ids_))));
  if (first == std::ssize(ids_)) ids_.insert(ids_.end(), ids.begin(), ids.end());
}

query_window prompt_memory::window_of(std::int64_t layer, std::int64_t end, float scale) const noexcept {
  if (kept_.empty() || kept_[static_cast<std::size_t>(layer)].end != end) return {};
  return {.data = queries_.data() + layer * room_ * row(),
          .tokens = kept_[static_cast<std::size_t>(layer)].count,
          .heads = shape_.q_heads,
          .token_stride = row(),
          .head_stride = shape_.head_dim,
          .scale = scale};
}

std::span<std::int32_t const> prompt_memory::ids_of(std::int64_t first, std::int64_t end) const noexcept {
  if (end > std::ssize(ids_)) return {};
  return std::span(ids_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
}

void prompt_memory::learn_rotation(ggml_tensor const* rope) {
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

rotation prompt_memory::turned() const noexcept { return {frequency_.data(), std::ssize(frequency_), pairing_}; }

void prompt_memory::forget(std::int64_t tokens) noexcept {
  for (span_of_layer& kept : kept_) {
    if (kept.end <= tokens) continue;
    kept.count = std::max<std::int64_t>(0, kept.count - (kept.end - tokens));
    kept.end = tokens;
  }
  if (tokens < std::ssize(ids_)) ids_.resize(static_cast<std::size_t>(tokens));
}

saved_prompt prompt_memory::save() const {
  if (kept_.empty()) return {};
  saved_prompt saved{.tokens = kept_.back().end, .window = kept_.back().count, .queries = {}, .ids = ids_};
  for (std::int64_t l = 0; l < shape_.layers && saved.window > 0; ++l) {
    float const* const from = queries_.data() + l * room_ * row();
    saved.queries.insert(saved.queries.end(), from, from + saved.window * row());
  }
  return saved;
}

void prompt_memory::load(saved_prompt const& saved) {
  KVPOLICY_EXPECTS(std::ssize(saved.queries) == shape_.layers * saved.window * row(),
                   "the saved prompt is of another model: it has " + std::to_string(saved.queries.size()) + " query elements");
  std::int64_t const count = std::min(saved.window, room_);
  for (std::int64_t l = 0; l < shape_.layers; ++l) {
    if (count > 0)
      std::copy_n(saved.queries.data() + ((l + 1) * saved.window - count) * row(), count * row(),
                  queries_.begin() + l * room_ * row());
    kept_[static_cast<std::size_t>(l)] = {count, saved.tokens};
  }
  ids_ = saved.ids;
}

}  // namespace kvpolicy::llama
