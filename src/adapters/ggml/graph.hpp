// What a graph of llama.cpp's says of the attention that a device computes.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>
#include <vector>

#include "llama/nodes.hpp"

namespace kvpolicy::ggml {

/// A FLASH_ATTN_EXT node over an ordinary cache.
struct attention {
  int place = 0;  ///< in the graph
  ggml_tensor* node = nullptr;
};

/// A graph with attention, that writes its tokens' rows first.
struct attention_graph {
  std::vector<ggml_tensor const*> written{};  ///< a layer's SET_ROWS of keys each
  std::vector<attention> layers{};            ///< in the graph's order; empty: it attends to no cache
  ggml_tensor const* cells = nullptr;         ///< I64 `[tokens]`: where the tokens' rows go, stream * cells of a stream + cell
  ggml_tensor const* outputs = nullptr;       ///< I32: tokens that have logits; null: all have
  ggml_tensor const* logits = nullptr;        ///< f32 `[vocabulary, outputs]`; null: none
  llama::graph_mask mask{};
  ggml_tensor const* shifts =
      nullptr;         ///< I32 `[cells]`: it turns keys where they lie, by so many positions; null: it does not
  bool waits = false;  ///< ggml-cuda waits for the device in the middle of it, so it can't be captured

  std::int64_t tokens() const noexcept { return layers.front().node->src[0]->ne[1] * layers.front().node->src[0]->ne[3]; }
  std::int64_t stream_cells() const noexcept { return llama::storage_of(layers.front().node->src[1])->ne[1]; }
};

/// Reads a graph that is about to be computed. Throws unsupported for attention that no policy can serve, and where the model
/// has attention over a cache in other graphs, too.
attention_graph read(ggml_cgraph* graph);
/// Throws unsupported for a graph that attends to a cache, on a device that no policy serves.
void refuse_attention(ggml_cgraph* graph);

}  // namespace kvpolicy::ggml
