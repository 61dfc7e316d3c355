#include "nodes.hpp"

#include <ggml-backend.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace kvpolicy::llama {

ggml_tensor const* storage_of(ggml_tensor const* tensor) noexcept {
  while (tensor->view_src != nullptr || tensor->op == GGML_OP_CPY)
    tensor = tensor->view_src != nullptr ? tensor->view_src : tensor->src[0];
  return tensor;
}

ggml_tensor const* behind_copies(ggml_tensor const* tensor) noexcept {
  auto const copies = [](ggml_op op) {
    return op == GGML_OP_CPY || op == GGML_OP_DUP || op == GGML_OP_CONT || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE;
  };
  while (copies(tensor->op) && tensor->src[0] != nullptr) tensor = tensor->src[0];
  return tensor;
}

std::optional<std::int64_t> key_cache_layer(ggml_tensor const* tensor) noexcept {
  constexpr std::string_view prefix = "cache_k_l";
  std::string_view const name = storage_of(tensor)->name;
  if (!name.starts_with(prefix)) return std::nullopt;
  return std::strtoll(name.data() + prefix.size(), nullptr, 10);
}

std::span<std::int64_t const> written_cells(ggml_tensor const* set_rows) {
  ggml_tensor const* const indices = set_rows->src[1];
  if (indices == nullptr || indices->type != GGML_TYPE_I64 || indices->data == nullptr) {
    throw unsupported("this llama.cpp writes its cache in a way that kvpolicy does not know; 0.5 to 0.7 are known");
  }
  return {static_cast<std::int64_t const*>(indices->data), static_cast<std::size_t>(indices->ne[0])};
}

std::optional<element_type> element_of(ggml_type type) noexcept {
  using enum element_type;
  constexpr std::pair<ggml_type, element_type> known[] = {
      {GGML_TYPE_F16, f16},   {GGML_TYPE_BF16, bf16}, {GGML_TYPE_F32, f32},   {GGML_TYPE_Q8_0, q8_0},    {GGML_TYPE_Q4_0, q4_0},
      {GGML_TYPE_Q4_1, q4_1}, {GGML_TYPE_Q5_0, q5_0}, {GGML_TYPE_Q5_1, q5_1}, {GGML_TYPE_IQ4_NL, iq4_nl}};
  auto const* const found = std::ranges::find(known, type, &std::pair<ggml_type, element_type>::first);
  if (found == std::end(known)) return std::nullopt;
  return found->second;
}

rows all_rows_of(ggml_tensor const* source) {
  if (source->op == GGML_OP_CPY) source = source->src[0];
  auto const type = element_of(source->type);
  if (!type) {
    throw unsupported(std::string("a cache of type ") + ggml_type_name(source->type) +
                      " is not supported; set type_k and type_v to f16, bf16, f32, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl");
  }
  ggml_tensor const* const storage = storage_of(source);
  // Values may be a part of the keys' rows (MLA).
  std::size_t const in_row = (source->view_offs - storage->view_offs) % source->nb[1] % source->nb[2];
  return {.base = static_cast<std::byte const*>(storage->data) + in_row,
          .type = *type,
          .heads = source->ne[2],
          .tokens = storage->ne[1] * storage->ne[2],
          .head_dim = source->ne[0],
          .head_stride = static_cast<std::int64_t>(source->nb[2]),
          .token_stride = static_cast<std::int64_t>(source->nb[1]),
          .dim_stride = static_cast<std::int64_t>(source->nb[0])};
}

std::optional<std::int64_t> attended_layer(ggml_tensor const* attention) noexcept {
  if (auto const found = key_cache_layer(attention->src[1])) return found;
  constexpr std::string_view prefix = "#cache_k_l";
  std::string_view const name = attention->src[1]->name;
  std::size_t const at = name.find(prefix);
  if (at == std::string_view::npos) return std::nullopt;
  return std::strtoll(name.data() + at + prefix.size(), nullptr, 10);
}

void check_attention(ggml_tensor const* node) {
  if (node->src[3] == nullptr || !attended_layer(node)) {
    throw unsupported("attention without an ordinary KV cache (an encoder, or a cache of another kind) is not supported");
  }
  if (ggml_tensor const* const sinks = node->src[4]; sinks != nullptr && sinks->type != GGML_TYPE_F32) {
    throw unsupported(std::string("attention sinks of type ") + ggml_type_name(sinks->type) + " are not supported; f32 is");
  }
}

bool is_offloaded(ggml_tensor const* node) noexcept {
  return std::ranges::any_of(std::array{node->src[1], node->src[2]}, [](ggml_tensor const* source) {
    ggml_backend_buffer* const buffer = storage_of(source)->buffer;
    return buffer != nullptr && !ggml_backend_buffer_is_host(buffer);
  });
}

attention_parameters::attention_parameters(ggml_tensor const* node) noexcept {
  std::memcpy(&scale, node->op_params, sizeof scale);
  std::memcpy(&max_bias, node->op_params + 1, sizeof max_bias);
  std::memcpy(&soft_cap, node->op_params + 2, sizeof soft_cap);
}

namespace {

/// ALiBi's slope of each query head.
std::vector<float> slopes_of(float max_bias, std::int64_t q_heads) {
  auto const power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(q_heads)));
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < q_heads; ++h) {
    // Where the heads are no power of two, those behind it go between the others' slopes.
    double const exponent = h < power ? static_cast<double>(h + 1) : static_cast<double>(h - power) + .5;
    slopes.push_back(static_cast<float>(std::exp2(-static_cast<double>(max_bias) * exponent / static_cast<double>(power))));
  }
  return slopes;
}

}  // namespace

ggml_tensor const* rotated_by(ggml_tensor const* node) noexcept {
  if (!key_cache_layer(node)) return nullptr;
  if (node->op == GGML_OP_ROPE) return node->src[1];
  if (node->op != GGML_OP_CPY || node->view_src == nullptr) return nullptr;
  // Keys in blocks are made floats, multiplied by a matrix, rotated, multiplied again, and written back.
  for (ggml_tensor const* t = node->src[0]; t != nullptr; t = t->src[t->op == GGML_OP_MUL_MAT ? 1 : 0]) {
    if (t->op == GGML_OP_ROPE) return t->src[1];
  }
  return nullptr;
}

graph_mask::graph_mask(ggml_tensor const* attention)
    : input_(behind_copies(attention->src[3])),  // an F32 input that is converted to F16 is not computed yet
      per_stream_(attention->src[0]->ne[1]),
      biased_(attention->op == GGML_OP_FLASH_ATTN_EXT && attention_parameters(attention).max_bias != 0) {
  if (input_->op != GGML_OP_NONE) {
    throw unsupported(std::string("the model computes its attention mask (") + ggml_op_name(input_->op) +
                      "): only causal masks and windows that the engine sets are supported");
  }
  if (input_->data == nullptr || (input_->type != GGML_TYPE_F32 && input_->type != GGML_TYPE_F16)) {
    throw unsupported("this llama.cpp masks its attention in a way that kvpolicy does not know; 0.5 to 0.7 are known");
  }
}

char const* graph_mask::at(std::int64_t token, std::int64_t cell) const noexcept {
  return static_cast<char const*>(input_->data) + static_cast<std::size_t>(token % per_stream_) * input_->nb[1] +
         static_cast<std::size_t>(token / per_stream_) * input_->nb[3] + static_cast<std::size_t>(cell) * input_->nb[0];
}

float graph_mask::value(std::int64_t token, std::int64_t cell) const noexcept {
  float wide = 0;
  std::uint16_t half = 0;
  if (input_->type == GGML_TYPE_F32) std::memcpy(&wide, at(token, cell), sizeof wide);
  else std::memcpy(&half, at(token, cell), sizeof half), wide = half_to_float(half);
  return wide;
}

bool graph_mask::visible(std::int64_t token, std::int64_t cell) const noexcept {
  if (biased_) return std::isfinite(value(token, cell));
  if (input_->type == GGML_TYPE_F32) return value(token, cell) == 0;
  std::uint16_t half = 0;
  std::memcpy(&half, at(token, cell), sizeof half);
  return (half & 0x7fffu) == 0;
}

bool graph_mask::is_apart(std::int64_t token, std::int64_t cell, std::int64_t positions) const noexcept {
  float const v = value(token, cell);
  auto const apart = -static_cast<float>(positions);
  return v == apart || v == half_to_float(float_to_half(apart));
}

attention_node read_attention(ggml_tensor* node, std::int64_t layer, std::vector<float>& slopes) {
  attention_node made{.layer = layer, .queries = {node->src[0]}, .out = static_cast<float*>(node->data)};
  try {
    check_attention(node);
    if (is_offloaded(node)) throw unsupported(offloaded);
    made.keys = all_rows_of(node->src[1]);
    made.values = all_rows_of(node->src[2]);
    made.stream_cells = storage_of(node->src[1])->ne[1];
    made.mask = graph_mask(node);
  } catch (unsupported const& why) {
    made.refused = why.what();
    return made;
  }
  attention_parameters const said(node);
  if (said.max_bias != 0 && slopes.empty()) slopes = slopes_of(said.max_bias, made.queries.heads());
  made.scale = said.scale;
  made.terms = {.soft_cap = said.soft_cap,
                .slopes = said.max_bias != 0 ? slopes.data() : nullptr,
                .sinks = node->src[4] != nullptr ? static_cast<float const*>(node->src[4]->data) : nullptr};
  return made;
}

}  // namespace kvpolicy::llama
