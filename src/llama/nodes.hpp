// Reading llama.cpp's compute graph: which node is what, and what it would read. Only public ggml is used.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <optional>

#include "kvpolicy/view.hpp"

namespace kvpolicy::llama {

/// The cache layer that a tensor is a view of, through any chain of views ("cache_k_l7" gives 7).
std::optional<std::int64_t> key_cache_layer(ggml_tensor const* tensor) noexcept;

/// The tensor at the foot of a chain of views.
ggml_tensor const* storage_of(ggml_tensor const* tensor) noexcept;

/// Which cells a SET_ROWS node is about to write: consecutive ones. Throws unsupported for any others.
struct written_cells {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
written_cells cells_of(ggml_tensor const* set_rows);

/// K or V source of a FLASH_ATTN_EXT node, `[dim, cells, heads]`, as rows. Throws unsupported for types but f16 and bf16.
rows rows_of(ggml_tensor const* source);

/// Throws unsupported unless the node is attention that kvpolicy computes exactly: one stream, no bias, no soft cap, no
/// learned sinks, host memory.
void check_attention(ggml_tensor const* node);

/// Throws unsupported unless token `first + t` of the batch sees exactly cells 0 .. first + t: one causal sequence without
/// holes, whose cells are in order.
void check_mask(ggml_tensor const* mask, written_cells const& written);

}  // namespace kvpolicy::llama
