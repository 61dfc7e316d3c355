// What a session remembers of prompts for policies that ask: last queries of each layer, token ids, the rotary embedding.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kvpolicy/interop/llama.hpp"
#include "nodes.hpp"

namespace kvpolicy::llama {

class prompt_memory {
 public:
  /// Room for the last `queries` queries of each layer, as many as the cache has cells at most; growing forgets.
  void reserve(cache_shape const& shape, std::int64_t queries);

  /// Appends the micro-batch's last queries of one layer. `q` is `[head_dim, tokens, heads]`.
  void keep(std::int64_t layer, ggml_tensor const* q, written_cells const& cells);
  void keep_ids(std::span<std::int32_t const> ids, std::int64_t first);

  /// The last queries up to token `end`, or none.
  query_window window_of(std::int64_t layer, std::int64_t end, float scale) const noexcept;
  /// Ids of tokens [first, end), or none where they are not all known.
  std::span<std::int32_t const> ids_of(std::int64_t first, std::int64_t end) const noexcept;

  /// Reads the rotary embedding off a ROPE node. Throws unsupported for those that turn differently at different lengths.
  void learn_rotation(ggml_tensor const* rope);
  bool knows_rotation() const noexcept { return !frequency_.empty(); }
  rotation turned() const noexcept;

  bool keeps_queries() const noexcept { return room_ > 0; }
  void forget(std::int64_t tokens) noexcept;

  saved_prompt save() const;
  void load(saved_prompt const& saved);

 private:
  std::int64_t row() const noexcept { return shape_.q_heads * shape_.head_dim; }

  struct span_of_layer {
    std::int64_t count = 0;  ///< queries
    std::int64_t end = 0;    ///< token behind the last of them
  };
  cache_shape shape_{};
  std::int64_t room_ = 0;
  std::vector<float> queries_;  ///< `[layers, room, q_heads, head_dim]`, oldest first
  std::vector<span_of_layer> kept_;
  std::vector<std::int32_t> ids_;
  std::vector<float> frequency_;
  rotation::pairing pairing_ = rotation::pairing::halves;
};

}  // namespace kvpolicy::llama
