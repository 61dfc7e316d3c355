// Reading llama.cpp's compute graph: which node is what, and what it would read. Only public ggml is used.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <optional>
#include <span>

#include "kvpolicy/view.hpp"

namespace kvpolicy::llama {

/// The cache layer that a tensor is a view of, through any chain of views ("cache_k_l7" gives 7).
std::optional<std::int64_t> key_cache_layer(ggml_tensor const* tensor) noexcept;

/// The tensor at the foot of a chain of views.
ggml_tensor const* storage_of(ggml_tensor const* tensor) noexcept;

/// Which cells a SET_ROWS node is about to write, one for each token of the micro-batch: stream * cells of a stream + cell.
/// Throws unsupported for another engine's way of writing.
std::span<std::int64_t const> written_cells(ggml_tensor const* set_rows);

/// The element type of a cache of this type; none where the library has none.
std::optional<element_type> element_of(ggml_type type) noexcept;

/// All cells of all streams behind the K or V source of a FLASH_ATTN_EXT node, as rows: `[dim, cells of all streams, heads]`.
/// Throws unsupported for types that element_of has none for.
rows all_rows_of(ggml_tensor const* source);

/// Throws unsupported unless the node is attention that kvpolicy computes exactly: no bias, no soft cap, no learned sinks, host
/// memory.
void check_attention(ggml_tensor const* node);

/// Query heads of a micro-batch's tokens as a FLASH_ATTN_EXT node has them, `[dim, tokens, heads, streams]`.
struct graph_queries {
  ggml_tensor const* tensor;

  std::int64_t tokens() const noexcept { return tensor->ne[1] * tensor->ne[3]; }
  float const* at(std::int64_t token, std::int64_t head) const noexcept {
    return reinterpret_cast<float const*>(
        static_cast<char const*>(tensor->data) + static_cast<std::size_t>(token % tensor->ne[1]) * tensor->nb[1] +
        static_cast<std::size_t>(head) * tensor->nb[2] + static_cast<std::size_t>(token / tensor->ne[1]) * tensor->nb[3]);
  }
};

/// Which cells of its stream each token of a micro-batch sees, as far as the graph reads: `[cells, tokens, 1, streams]`.
class graph_mask {
 public:
  /// Of a FLASH_ATTN_EXT node, before anything is computed: the input that its mask is converted from.
  explicit graph_mask(ggml_tensor const* attention);

  std::int64_t cells() const noexcept { return input_->ne[0]; }
  bool visible(std::int64_t token, std::int64_t cell) const noexcept;

 private:
  ggml_tensor const* input_;
  std::int64_t per_stream_;
};

}  // namespace kvpolicy::llama
