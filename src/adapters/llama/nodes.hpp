// Reading llama.cpp's compute graph: which node is what, and what it would read. Only public ggml is used.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/primitive/attention_terms.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::llama {

/// The cache layer that a tensor is a view of, through any chain of views ("cache_k_l7" gives 7).
std::optional<std::int64_t> key_cache_layer(ggml_tensor const* tensor) noexcept;

/// The tensor at the foot of a chain of views, and of the copy that the engine's attention reads of an f32 cache.
ggml_tensor const* storage_of(ggml_tensor const* tensor) noexcept;

/// What a tensor's values are of: through copies, casts and views.
ggml_tensor const* behind_copies(ggml_tensor const* tensor) noexcept;

/// Which cells a SET_ROWS node is about to write, one for each token of the micro-batch: stream * cells of a stream + cell.
/// Throws unsupported for another engine's way of writing.
std::span<std::int64_t const> written_cells(ggml_tensor const* set_rows);

/// The element type of a cache of this type; none where the library has none.
std::optional<element_type> element_of(ggml_type type) noexcept;

/// All cells of all streams behind the K or V source of a FLASH_ATTN_EXT node, as rows: `[dim, cells of all streams, heads]`.
/// Throws unsupported for types that element_of has none for.
rows all_rows_of(ggml_tensor const* source);

/// The cache layer of an attention node's keys, through a copy of them on another device ("CUDA0#cache_k_l3 (view)#0").
std::optional<std::int64_t> attended_layer(ggml_tensor const* attention) noexcept;

/// Throws unsupported unless the node is attention that kvpolicy computes exactly.
void check_attention(ggml_tensor const* node);
/// Whether its keys or values lie where the host can't read them, and how to say so.
bool is_offloaded(ggml_tensor const* node) noexcept;
inline constexpr char const* offloaded =
    "attention runs on a device, with offload_kqv = false too, where flash attention gets copies of the cache; set "
    "n_gpu_layers = 0, "
    "or compact the cache (kvpolicy::llama::compactor)";

/// What a FLASH_ATTN_EXT node's parameters say.
struct attention_parameters {
  float scale = 1;
  float max_bias = 0;  ///< of ALiBi; 0: none
  float soft_cap = 0;

  explicit attention_parameters(ggml_tensor const* node) noexcept;
};

/// Of a node that rotates a layer's cached keys in their place, or writes them back rotated: the positions that each cell's is
/// rotated by. Null for other nodes.
ggml_tensor const* rotated_by(ggml_tensor const* node) noexcept;

/// Query heads of a micro-batch's tokens as a FLASH_ATTN_EXT node has them, `[dim, tokens, heads, streams]`.
struct graph_queries {
  ggml_tensor const* tensor = nullptr;

  std::int64_t tokens() const noexcept { return tensor->ne[1] * tensor->ne[3]; }
  std::int64_t heads() const noexcept { return tensor->ne[2]; }
  float const* at(std::int64_t token, std::int64_t head) const noexcept {
    return reinterpret_cast<float const*>(
        static_cast<char const*>(tensor->data) + static_cast<std::size_t>(token % tensor->ne[1]) * tensor->nb[1] +
        static_cast<std::size_t>(head) * tensor->nb[2] + static_cast<std::size_t>(token / tensor->ne[1]) * tensor->nb[3]);
  }
};

/// Which cells of its stream each token of a micro-batch sees, as far as the graph reads: `[cells, tokens, 1, streams]`.
class graph_mask {
 public:
  graph_mask() = default;
  /// Of a FLASH_ATTN_EXT node, before anything is computed: the input that its mask is converted from.
  explicit graph_mask(ggml_tensor const* attention);

  std::int64_t cells() const noexcept { return input_->ne[0]; }
  ggml_tensor const* input() const noexcept { return input_; }
  bool visible(std::int64_t token, std::int64_t cell) const noexcept;
  /// Whether what is visible has its distance, for ALiBi, in place of 0.
  bool biased() const noexcept { return biased_; }
  /// With ALiBi, whether the cell's distance is so many positions, as far as 16 bits tell.
  bool is_apart(std::int64_t token, std::int64_t cell, std::int64_t positions) const noexcept;

 private:
  char const* at(std::int64_t token, std::int64_t cell) const noexcept;
  float value(std::int64_t token, std::int64_t cell) const noexcept;

  ggml_tensor const* input_ = nullptr;
  std::int64_t per_stream_ = 0;
  bool biased_ = false;  ///< distances are negative
};

/// A FLASH_ATTN_EXT node, read once: all that its attention is made from.
struct attention_node {
  std::int64_t layer = 0;  ///< of those that are served
  rows keys{};             ///< all cells of all streams
  rows values{};
  std::int64_t stream_cells = 0;  ///< cells of a stream
  graph_queries queries{};
  graph_mask mask{};
  float scale = 1;
  attention_terms terms{};
  float* out = nullptr;   ///< `[tokens, q_heads, head_dim]`
  std::string refused{};  ///< why no policy can run on it; empty: one can
};

/// Reads a node before anything of it is computed. `slopes` are filled where the model has ALiBi, and must outlive what is
/// read.
attention_node read_attention(ggml_tensor* node, std::int64_t layer, std::vector<float>& slopes);

}  // namespace kvpolicy::llama
