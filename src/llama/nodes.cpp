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

written_cells cells_of(ggml_tensor const* set_rows) {
  ggml_tensor const* const indices = set_rows->src[1];
  if (indices == nullptr || indices->type != GGML_TYPE_I64 || indices->data == nullptr) {
    throw unsupported("this llama.cpp writes its cache in a way that kvpolicy does not know; 0.5 to 0.7 are known");
  }
  std::int64_t const count = indices->ne[0];
  auto const* const cells = static_cast<std::int64_t const*>(indices->data);
  for (std::int64_t i = 1; i < count; ++i) {
    if (cells[i] != cells[0] + i) {
      throw unsupported("the batch is written to scattered cells (" + std::to_string(cells[i - 1]) + " then " +
                        std::to_string(cells[i]) + "): several sequences, or a cache with holes, are not supported");
    }
  }
  if (cells[0] + count > storage_of(set_rows)->ne[1]) {
    throw unsupported("the batch is written to another sequence's stream; one sequence a context is supported");
  }
  return {cells[0], count};
}

rows rows_of(ggml_tensor const* source) {
  if (source->type != GGML_TYPE_F16 && source->type != GGML_TYPE_BF16) {
    throw unsupported(std::string("a cache of type ") + ggml_type_name(source->type) +
                      " is not supported; set type_k and type_v to f16 or bf16");
  }
  return {.base = static_cast<std::byte const*>(source->data),
          .type = source->type == GGML_TYPE_F16 ? element_type::f16 : element_type::bf16,
          .heads = source->ne[2],
          .tokens = source->ne[1],
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
  if (node->src[0]->ne[3] != 1 || keys->ne[3] != 1) {
    throw unsupported("several sequences in one decode batch are not supported yet; decode one sequence a context");
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

namespace {

bool visible(ggml_tensor const* mask, std::int64_t row, std::int64_t cell) {
  auto const* const at = static_cast<char const*>(mask->data) + static_cast<std::size_t>(row) * mask->nb[1] +
                         static_cast<std::size_t>(cell) * mask->nb[0];
  if (mask->type == GGML_TYPE_F32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value == 0;
  }
  std::uint16_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return (value & 0x7fffu) == 0;
}

}  // namespace

void check_mask(ggml_tensor const* mask, written_cells const& written) {
  for (std::int64_t t = 0; t < written.count; ++t) {
    std::int64_t const seen = written.first + t + 1;
    // Rows differ by one cell: the last is read whole, the others at its edge.
    std::int64_t const from = t + 1 == written.count ? 0 : seen - 1;
    std::int64_t const to = t + 1 == written.count ? mask->ne[0] : std::min(seen + 1, mask->ne[0]);
    for (std::int64_t cell = from; cell < to; ++cell) {
      if (visible(mask, t, cell) != (cell < seen)) {
        throw unsupported("token " + std::to_string(seen - 1) + (cell < seen ? " does not see cell " : " sees cell ") +
                          std::to_string(cell) +
                          ": only one causal sequence without holes, in cells of its own order, is supported (several "
                          "sequences, llama_memory_seq_rm from the middle, sliding windows and encoders are not)");
      }
    }
  }
}

}  // namespace kvpolicy::llama
