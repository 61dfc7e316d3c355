// The inner loops of attend_block: tiles of 32 queries against blocks of 128 keys.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvpolicy/types.hpp"

namespace kvpolicy::simd {

inline constexpr std::int64_t tile_queries = 32;
inline constexpr std::int64_t tile_keys = 128;
inline constexpr std::int64_t tile_step = 32;  ///< rows of keys, and channels, come in multiples of it; the rest is zeros

/// Of a row's channels, those that are worked on.
constexpr std::int64_t padded(std::int64_t dims) noexcept { return (dims + tile_step - 1) / tile_step * tile_step; }

/// Bytes of a packed tile of queries, and of a packed block of keys or of values, whichever kernels packed it.
constexpr std::int64_t packed_queries(std::int64_t dims) noexcept { return padded(dims) * tile_queries * 4; }
constexpr std::int64_t packed_block(std::int64_t dims) noexcept { return padded(dims) * tile_keys * 4; }

/// Queries of one head, one lane each, and their softmax so far. Logits are in base 2.
struct query_tile {
  std::byte const* queries;  ///< packed, times scale / ln 2
  float* sums;               ///< `[padded, 32]`: weights times values
  float* most;               ///< `[32]`
  float* total;              ///< `[32]`
  // Which rows a lane sees, counted along its head's list: none where begin >= end.
  std::int32_t const* begin;
  std::int32_t const* end;
  float soft_cap = 0;             ///< in base 2; 0: none
  float slope = 0;                ///< in base 2
  float const* places = nullptr;  ///< `[32]`: rows of the queries, where there is a slope
};

/// No logit is as low; weights relative to it are 0 and never NaN.
inline constexpr float no_logit = -1e30f;

/// What a block's logits go through: masks and terms, maximum, weights; sums and totals shrink where the maximum rose. Weights
/// take the logits' place: as they are, or rounded to bf16 in pairs of rows: row 2j has (2j, 2j + 1).
using weigh_function = void (*)(query_tile const& tile, float* logits, std::int64_t rows, std::int64_t first, bool masked,
                                float const* key_places, std::int64_t dims, bool pairs);

/// One way to multiply. Packing returns whether all elements are finite.
struct block_kernels {
  char const* instruction_set;
  bool pairs;       ///< takes weights in pairs
  void (*enter)();  ///< on the thread that will call products and accumulate, until it calls leave
  void (*leave)();
  bool (*pack_queries)(float const* first, std::int64_t token_stride, std::int64_t count, std::int64_t dims, float factor,
                       std::byte* packed);
  bool (*pack_keys)(std::byte const* const* rows, std::int64_t count, element_type type, std::int64_t dims, std::byte* packed);
  bool (*pack_values)(std::byte const* const* rows, std::int64_t count, element_type type, std::int64_t dims,
                      std::byte* packed);
  /// logits `[rows, 32]` = keys times queries; rows is a multiple of tile_step.
  void (*products)(std::byte const* keys, std::byte const* queries, std::int64_t rows, std::int64_t dims, element_type type,
                   float* logits);
  /// sums `[padded, 32]` += values times weights.
  void (*accumulate)(std::byte const* values, float const* weights, std::int64_t rows, std::int64_t dims, element_type type,
                     float* sums);
};

/// The best that this CPU and its kernel allow.
block_kernels const& best_block_kernels() noexcept;
weigh_function best_weigh() noexcept;

/// Tiles of bf16 (AMX), or null where there are none: another architecture, an older CPU, a kernel that does not allow them.
block_kernels const* bf16_tiles() noexcept;

}  // namespace kvpolicy::simd
