// A tile of products of a prompt's last queries with its keys, worked on by a block.
#pragma once

#include "kvpolicy/gpu/base/rows.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// Keys that are not all of a sequence's, or not all that a query sees: key i of list l is token tokens[l stride + i], and
/// query i sees keys [begins[l window + i], ends[l window + i]).
struct listed_keys {
  buffer<std::int32_t const> tokens;  ///< `[lists, stride]`, or none: keys are tokens, and seen as prompt_attention says
  std::int64_t stride = 0;
  buffer<std::int32_t const> begins;  ///< `[lists, window]`
  buffer<std::int32_t const> ends;
  std::int32_t lists = 1;  ///< 1, or one for each KV head

  constexpr std::int64_t of(unsigned head) const noexcept { return lists == 1 ? 0 : head; }
};

/// The window's queries against a layer's keys. A KV head's "rows" are its (query head, window token) pairs, window token
/// fastest.
struct prompt_attention {
  vector_rows queries;  ///< `[window, q_heads, head_dim]`
  float scale = 1;
  std::int32_t group = 1;
  std::int64_t window = 0;  ///< queries
  std::int64_t tokens = 0;  ///< keys; window query i sees [0, tokens - window + i] if they are not listed
  batch_rows keys;
  listed_keys listed;

  constexpr std::int64_t rows() const noexcept { return group * window; }
};

/// A tile of logits: a warp has 4 rows, each of its lanes 2 keys of 64.
inline constexpr int tile_rows = 32;
inline constexpr int tile_keys = 64;
inline constexpr int tile_channels = 64;

template <class B>
struct logit_shared {
  typename B::template array<float, tile_keys*(tile_channels + 1)> keys;
  typename B::template array<float, tile_rows * tile_channels> queries;
};

/// logits[r][c] of rows first_row + 4 warp + r and keys first_key + 32 c + lane, in base e; -inf where a key is not seen or a
/// row or key is none. Collective; ends with every thread done with `s`.
template <element_type E, class B>
KVPOLICY_KERNEL void logit_tile(B& block, logit_shared<B>& s, prompt_attention const& a, unsigned head, std::int64_t first_row,
                                std::int64_t first_key, float (&logits)[4][2]) {
  auto const tile = block.tile();
  auto const thread = static_cast<std::int32_t>(block.thread());
  row_reader<E, B> const keys(block, a.keys, 0);
  KVPOLICY_UNROLL
  for (int r = 0; r < 4; ++r) logits[r][0] = logits[r][1] = 0;
  for (std::int32_t channel = 0; channel < a.keys.head_dim; channel += tile_channels) {
    constexpr std::int32_t parts = tile_channels / 8;
    for (std::int32_t i = thread; i < tile_keys * parts; i += B::threads) {
      std::int32_t const k = i / parts;
      std::int32_t const part = i - k * parts;
      float x[8] = {};
      if (first_key + k < a.tokens && channel + part * 8 < a.keys.head_dim) {
        std::int64_t token = first_key + k;
        if (a.listed.tokens.data != nullptr) {
          std::int32_t const named = block.global(a.listed.tokens)[a.listed.of(head) * a.listed.stride + token];
          token = named;
        }
        keys.load(keys.offset(head, token), channel / 8 + part, x);
      }
      KVPOLICY_UNROLL
      for (int c = 0; c < 8; ++c) s.keys[k * (tile_channels + 1) + part * 8 + c] = x[c];
    }
    for (std::int32_t i = thread; i < tile_rows * tile_channels; i += B::threads) {
      std::int32_t const r = i / tile_channels;
      std::int32_t const c = i - r * tile_channels;
      std::int64_t const row = first_row + r;
      float x = 0;
      if (row < a.rows() && channel + c < a.keys.head_dim) {
        std::int64_t const g = row / a.window;
        x = a.scale *
            get(block, a.queries,
                (row - g * a.window) * a.queries.token_stride + (head * a.group + g) * a.queries.head_stride + channel + c);
      }
      s.queries[i] = x;
    }
    block.sync();
    std::int32_t const row = static_cast<std::int32_t>(tile.index()) * 4;
    auto const lane = static_cast<std::int32_t>(tile.lane());
    for (std::int32_t c = 0; c < tile_channels; ++c) {
      float const near = s.keys[lane * (tile_channels + 1) + c];
      float const far = s.keys[(lane + 32) * (tile_channels + 1) + c];
      KVPOLICY_UNROLL
      for (int r = 0; r < 4; ++r) {
        float const query = s.queries[(row + r) * tile_channels + c];
        logits[r][0] += query * near;
        logits[r][1] += query * far;
      }
    }
    block.sync();
  }
  KVPOLICY_UNROLL
  for (int r = 0; r < 4; ++r) {
    std::int64_t const row = first_row + tile.index() * 4 + r;
    std::int64_t const i = row % a.window;
    std::int64_t begin = 0;
    std::int64_t end = row < a.rows() ? a.tokens - a.window + i + 1 : 0;
    if (a.listed.tokens.data != nullptr && row < a.rows()) {
      std::int32_t const from = block.global(a.listed.begins)[a.listed.of(head) * a.window + i];
      std::int32_t const to = block.global(a.listed.ends)[a.listed.of(head) * a.window + i];
      begin = from;
      end = to;
    }
    KVPOLICY_UNROLL
    for (int c = 0; c < 2; ++c) {
      std::int64_t const key = first_key + 32 * c + tile.lane();
      if (key < begin || key >= end) logits[r][c] = -__builtin_huge_valf();
    }
  }
}

}  // namespace kvpolicy::gpu::detail
