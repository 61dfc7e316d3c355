// The model's rotary embedding, read off its graph for policies that turn queries.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kvpolicy/queries.hpp"

namespace kvpolicy::llama {

/// That of all layers. A model that does not turn its keys has one that turns by nothing.
class rotary {
 public:
  /// Reads what turned the keys that a SET_ROWS node writes, heads of `head_dim` elements; for each layer, before its first
  /// prompt ends.
  /// @throws unsupported for an embedding that policies can't undo, and for layers that differ
  void learn(ggml_tensor const* set_rows, std::int64_t head_dim);
  bool known() const noexcept { return !frequency_.empty(); }
  rotation embedding() const noexcept;
  bool has_several_axes() const noexcept { return several_axes_; }
  /// Throws unsupported for positions of an image: its tokens have several, which turn a part of each head each.
  /// @param positions  `[axes, tokens]`
  void check_text(std::span<std::int32_t const> positions, std::int64_t tokens) const;

 private:
  std::vector<float> frequency_;
  rotation::pairing pairing_ = rotation::pairing::halves;
  bool several_axes_ = false;
};

}  // namespace kvpolicy::llama
