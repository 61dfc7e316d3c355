// What a session reads off the engine's graphs whether a policy runs or not: their inputs, and which tokens go to which cells.
#include <string_view>

#include "engine.hpp"

namespace kvpolicy::llama {

/// A GET_ROWS node that picks by one of the graph's inputs: the tokens' ids or positions, or the batch indices of those that
/// have logits.
void session::engine::see_input(ggml_tensor const* get_rows) {
  ggml_tensor const* const picks = get_rows->src[1];
  bool const input = picks->op == GGML_OP_NONE && (picks->flags & GGML_TENSOR_FLAG_INPUT) != 0 && picks->data != nullptr;
  // For embeddings, the engine has its tokens' rows in the graph too, and does not compute them.
  if (!input || picks->type != GGML_TYPE_I32 || (get_rows->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) return;
  std::span const values(static_cast<std::int32_t const*>(picks->data), static_cast<std::size_t>(picks->ne[0]));
  bool const of_weights = get_rows->src[0]->op == GGML_OP_NONE;
  std::string_view const name = picks->name;
  if (name == "inp_tokens") graph_.ids = values;
  else if (of_weights) graph_.positions = values;
  else if (name.ends_with("out_ids")) outputs_.assign(values.begin(), values.end());
}

/// The first served layer's keys go to these cells.
void session::engine::see_written(ggml_tensor const* set_rows) {
  graph_.written = {};  // whatever throws, not the last graph's
  graph_.written = written_cells(set_rows);
  if (!active() || rotary_.known() || !anyone_needs(signals::rotation)) return;
  if (ggml_tensor const* const rope = rope_of(set_rows)) rotary_.learn(rope);
}

/// Which tokens go to which cells, whether a policy runs or not. Returns whether to come back when this layer is computed.
bool session::engine::follow(ggml_tensor const* attention, std::int64_t layer) noexcept {
  bool const last = is_last(layer);
  try {
    rows const keys = all_rows_of(attention->src[1]);
    if (layer == 0) {
      graph_.stream_cells = storage_of(attention->src[1])->ne[1];
      // Another context may have been made of the same parameters, to see what fits for instance.
      if (!cells_.are_of(keys)) cells_.begin(keys, graph_.stream_cells);
      auto const whole = std::ssize(graph_.written);
      if (std::ssize(graph_.ids) != whole) graph_.ids = {};
      // Embeddings of several axes have their positions axis by axis; text's are the same in all.
      graph_.positions =
          std::ssize(graph_.positions) >= whole ? graph_.positions.first(graph_.written.size()) : decltype(graph_.positions){};
      if (graph_.positions.empty()) count_positions(attention);
      history_due_ = !cells_.sees_history();
      cells_.write(graph_);
    }
    if (last) cells_.see_last(keys);
    return last;
  } catch (...) {
    cells_.forget();  // a policy that runs is told why by serve()
    return false;
  }
}

/// The model has none in its graph (ALiBi): a token is as far as it sees others.
void session::engine::count_positions(ggml_tensor const* attention) {
  graph_mask const mask(attention);
  counted_.clear();
  for (std::int64_t i = 0; i < std::ssize(graph_.written); ++i) {
    std::int32_t seen = -1;  // but for itself
    for (std::int64_t cell = 0; cell < mask.cells(); ++cell) seen += mask.visible(i, cell) ? 1 : 0;
    counted_.push_back(seen);
  }
  graph_.positions = counted_;
}

/// llama_memory_seq_add: a graph of its own turns the cached keys, layer by layer. Returns whether to come back.
bool session::engine::turn(ggml_tensor const* by, std::int64_t layer) {
  if (layer == 0) {
    if (by->type == GGML_TYPE_I32 && by->data != nullptr)
      cells_.rotate({static_cast<std::int32_t const*>(by->data), static_cast<std::size_t>(ggml_nelements(by))});
    else cells_.forget();
  }
  return is_last(layer);
}

}  // namespace kvpolicy::llama
