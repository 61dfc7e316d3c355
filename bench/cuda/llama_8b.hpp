// Llama-3.1-8B's shape, and what each operation must at least read and write there: the byte counts behind the project's
// floors.
#pragma once

#include <algorithm>
#include <cmath>

#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy::bench::llama_8b {

#ifndef KVPOLICY_BENCH_LAYERS
#define KVPOLICY_BENCH_LAYERS 32  // fewer where steps are counted
#endif
inline constexpr std::int64_t layers = KVPOLICY_BENCH_LAYERS;
inline constexpr std::int64_t q_heads = 32;
inline constexpr std::int64_t kv_heads = 8;
inline constexpr std::int64_t head_dim = 128;
inline constexpr std::int64_t vocabulary = 128256;
inline constexpr std::int64_t layer_dims = kv_heads * head_dim;  ///< of a token's keys in a layer
inline constexpr std::int64_t dims = layers * layer_dims;        ///< of a CHESS vector
inline constexpr std::int64_t page = 16;                         ///< tokens of a physical page, and of Quest's
inline constexpr std::int64_t chess_page = 32;
inline constexpr std::int64_t sentence = 28;  ///< tokens, on average
inline constexpr float scale = .08838835f;    ///< 1 / sqrt(head_dim)

/// Bytes per second that floors are counted with.
inline constexpr double floor_speed = 4.3e12;

constexpr cache_shape shape(std::int64_t max_tokens) noexcept {
  return {.layers = layers,
          .q_heads = q_heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .max_tokens = max_tokens,
          .type = element_type::bf16};
}

// Bytes of a batch. Of one layer, but for pages() and descent(), which are of all layers: 16-bit keys, values and summaries;
// fp32 sums where pooling continues them.

/// Keys and values: 131072 B a token in all layers.
constexpr double attention(std::int64_t batch, std::int64_t tokens) { return static_cast<double>(batch * tokens) * 4096; }

/// Keys alone, once: pooling a prompt, window scores, list weights.
constexpr double keys(std::int64_t batch, std::int64_t tokens) { return attention(batch, tokens) / 2; }

/// A new token's key, and its page's fp32 means read and written.
constexpr double pooled_token(std::int64_t batch) { return static_cast<double>(batch * layer_dims) * (2 + 4 + 4); }

/// Every page's vector against an anchor: 64 KiB each.
constexpr double pages(std::int64_t batch, std::int64_t context) {
  return static_cast<double>(batch * (context / chess_page) * dims) * 2;
}

/// The vectors that a lazy descent scores: every grid, then children of what is kept, 8 to each.
constexpr double descent(std::int64_t batch, std::int64_t context, double grids_kept, double chunks_kept) {
  std::int64_t const all = context / chess_page;
  std::int64_t const grids = gpu::divided_up(gpu::divided_up(all, 8), 8);
  auto const kept = [](double share, std::int64_t live) {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(share * static_cast<double>(live) - 1e-6)));
  };
  std::int64_t const chunks = kept(grids_kept, grids) * 8;
  return static_cast<double>(batch * (grids + chunks + kept(chunks_kept, chunks) * 8) * dims) * 2;
}

/// Every page's maxima and minima.
constexpr double bounds(std::int64_t batch, std::int64_t context) {
  return static_cast<double>(batch * (context / page) * 2 * layer_dims) * 2;
}

/// Every block's vector (InfLLM).
constexpr double representatives(std::int64_t batch, std::int64_t context, std::int64_t block) {
  return static_cast<double>(batch * (context / block) * layer_dims) * 2;
}

/// Every sentence's mean.
constexpr double sentences(std::int64_t batch, std::int64_t context) {
  return static_cast<double>(batch) * static_cast<double>(context) / sentence * static_cast<double>(layer_dims) * 2;
}

/// fp32 scores read, indices written.
constexpr double top_k(std::int64_t rows, std::int64_t columns, std::int64_t k) {
  return static_cast<double>(rows * (columns + k)) * 4;
}

/// fp32 logits of one token.
constexpr double logits(std::int64_t batch) { return static_cast<double>(batch * vocabulary) * 4; }

}  // namespace kvpolicy::bench::llama_8b
