// The model's rotary embedding, read off its graph for policies that turn queries.
#pragma once

#include <ggml.h>

#include <vector>

#include "kvpolicy/queries.hpp"

namespace kvpolicy::llama {

class rotary {
 public:
  /// Reads a ROPE node. Throws unsupported for those that turn differently at different lengths.
  void learn(ggml_tensor const* rope);
  bool known() const noexcept { return !frequency_.empty(); }
  rotation embedding() const noexcept;

 private:
  std::vector<float> frequency_;
  rotation::pairing pairing_ = rotation::pairing::halves;
};

}  // namespace kvpolicy::llama
