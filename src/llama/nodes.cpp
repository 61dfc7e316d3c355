#include "nodes.hpp"

#include <ggml-backend.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace kvpolicy::llama {

ggml_tensor const* storage_of(ggml_tensor const* tensor) noexcept {
  while (tensor->view_src != nullptr) tensor = tensor->view_src;
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
  switch (type) {
    case GGML_TYPE_F16:
      return element_type::f16;
    case GGML_TYPE_BF16:
      return element_type::bf16;
    case GGML_TYPE_F32:
      return element_type::f32;
    default:
      return std::nullopt;
  }
}

rows all_rows_of(ggml_tensor const* source) {
  auto const type = element_of(source->type);
  if (!type) {
    throw unsupported(std::string("a cache of type ") + ggml_type_name(source->type) +
                      " is not supported; set type_k and type_v to f16, bf16 or f32");
  }
  ggml_tensor const* const storage = storage_of(source);
  return {.base = static_cast<std::byte const*>(storage->data),
          .type = *type,
          .heads = source->ne[2],
          .tokens = storage->ne[1] * storage->ne[2],
          .head_dim = source->ne[0],
          .head_stride = static_cast<std::int64_t>(source->nb[2]),
          .token_stride = static_cast<std::int64_t>(source->nb[1]),
          .dim_stride = static_cast<std::int64_t>(source->nb[0])};
}

void check_attention(ggml_tensor const* node) {
  float params[3];  // scale, max_bias, soft cap
  std::memcpy(params, node->op_params, sizeof params);
  if (params[1] != 0) throw unsupported("attention with position biases (ALiBi) is not supported");
  if (params[2] != 0) throw unsupported("attention with soft-capped logits is not supported");
  if (node->src[4] != nullptr) throw unsupported("attention with learned sinks is not supported");
  ggml_tensor const* const keys = node->src[1];
  ggml_tensor const* const values = node->src[2];
  if (node->src[3] == nullptr || !key_cache_layer(keys)) {
    throw unsupported("attention without an ordinary KV cache (an encoder, or a cache of another kind) is not supported");
  }
  if (keys->ne[0] != values->ne[0]) {
    throw unsupported("keys of " + std::to_string(keys->ne[0]) + " and values of " + std::to_string(values->ne[0]) +
                      " elements: heads of unequal size are not supported");
  }
  for (ggml_tensor const* const source : {keys, values}) {
    ggml_backend_buffer* const buffer = storage_of(source)->buffer;
    if (buffer != nullptr && !ggml_backend_buffer_is_host(buffer)) {
      throw unsupported(std::string("the KV cache lies in ") + ggml_backend_buffer_name(buffer) +
                        ": offloaded layers are not supported; set n_gpu_layers = 0 or offload_kqv = false");
    }
  }
}

graph_mask::graph_mask(ggml_tensor const* attention) : input_(attention->src[3]), per_stream_(attention->src[0]->ne[1]) {
  // The engine may convert its F32 input to F16 first, which is not computed yet.
  while (input_->op != GGML_OP_NONE && input_->src[0] != nullptr) input_ = input_->src[0];
  if (input_->data == nullptr || (input_->type != GGML_TYPE_F32 && input_->type != GGML_TYPE_F16)) {
    throw unsupported("this llama.cpp masks its attention in a way that kvpolicy does not know; 0.5 to 0.7 are known");
  }
}

bool graph_mask::visible(std::int64_t token, std::int64_t cell) const noexcept {
  auto const* const at =
      static_cast<char const*>(input_->data) + static_cast<std::size_t>(token % per_stream_) * input_->nb[1] +
      static_cast<std::size_t>(token / per_stream_) * input_->nb[3] + static_cast<std::size_t>(cell) * input_->nb[0];
  if (input_->type == GGML_TYPE_F32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value == 0;
  }
  std::uint16_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return (value & 0x7fffu) == 0;
}

}  // namespace kvpolicy::llama
