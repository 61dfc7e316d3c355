// What a graph of llama.cpp's says of the attention that a device computes.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "llama/nodes.hpp"

namespace kvpolicy::ggml {

/// A FLASH_ATTN_EXT node over an ordinary cache.
struct attention {
  int place = 0;  ///< in the graph
  ggml_tensor* node = nullptr;
};

/// A graph with attention: tokens of one sequence, whose rows it writes first.
struct sequence_graph {
  std::vector<attention> layers{};      ///< in the graph's order; empty: it attends to no cache
  ggml_tensor const* cells = nullptr;   ///< I64 `[tokens]`: where the tokens' rows go
  ggml_tensor const* rope = nullptr;    ///< that turned the first layer's keys; null: nothing did
  ggml_tensor const* logits = nullptr;  ///< f32 `[vocabulary, outputs]`; null: none
  llama::graph_mask mask{};
  bool rotates = false;  ///< keys where they lie: the cache's positions are shifted
  bool waits = false;    ///< ggml-cuda waits for the device in the middle of it, so it can't be captured

  std::int64_t tokens() const noexcept { return layers.front().node->src[0]->ne[1]; }
};

/// Reads a graph that is about to be computed. Throws unsupported for attention that no policy can serve, and where the model
/// has attention over a cache in other graphs, too.
sequence_graph read(ggml_cgraph* graph);
/// Throws unsupported for a graph that attends to a cache, on a device that no policy serves.
void refuse_attention(ggml_cgraph* graph);

/// Bytes that first_cell() reads.
std::size_t bytes_of_cells(sequence_graph const& of) noexcept;

/// The cell of the graph's first token, once the device has the graph's inputs; `room` is for them. Throws unsupported unless
/// its tokens follow each other there, and each sees all cells up to its own and no others.
std::int64_t first_cell(sequence_graph const& of, ggml_backend_t backend, std::span<std::byte> room);

}  // namespace kvpolicy::ggml
