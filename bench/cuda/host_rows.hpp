// Rows of one sequence in pinned host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu.hpp"
#include "kvpolicy/gpu/base/batch.hpp"

namespace kvpolicy::bench {

/// 16-bit rows of one sequence on the host, `[tokens, kv_heads, head_dim]`, pinned.
class host_rows {
 public:
  explicit host_rows(std::int64_t tokens)
      : halves_(static_cast<std::size_t>(tokens * llama_8b::layer_dims)), pinned_(halves_.data(), std::ssize(halves_) * 2) {
    std::uint32_t state = 1;
    for (std::uint16_t& half : halves_) {
      state = state * 1664525u + 1013904223u;
      half = static_cast<std::uint16_t>(state >> 16);
    }
  }
  gpu::batch_rows rows() const {
    gpu::batch_rows made{};
    made.base = halves_.data();
    made.elements = std::ssize(halves_);
    made.type = element_type::bf16;
    made.heads = llama_8b::kv_heads;
    made.head_dim = llama_8b::head_dim;
    made.head_stride = llama_8b::head_dim;
    made.token_stride = llama_8b::layer_dims;
    return gpu::finished(made);
  }

 private:
  std::vector<std::uint16_t> halves_;
  gpu::pinned_memory pinned_;
};

/// The same rows for all layers.
struct host_batch {
  gpu::batch_rows of_keys;
  gpu::batch_rows of_values;
  gpu::batch_rows keys(layer_id) const { return of_keys; }
  gpu::batch_rows values(layer_id) const { return of_values; }
};

}  // namespace kvpolicy::bench
