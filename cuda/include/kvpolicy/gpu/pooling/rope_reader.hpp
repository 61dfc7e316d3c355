// Keys rotated back by the model's rotary embedding, as they are read.
#pragma once

#include "kvpolicy/gpu/base/rows.hpp"

namespace kvpolicy::gpu::detail {

/// A rotary embedding as a kernel uses it; see batch_rope_angles.
template <class Table>
struct rope_reader {
  Table table;             ///< `[tokens, 2, pairs]`: cosines, then sines
  std::int64_t first = 0;  ///< the table's first token
  std::int32_t pairs = 0;  ///< 0: keys are not rotated
  bool halves = true;

  /// Channels [8 part, 8 part + 8) of a key at `offset`, rotated back.
  template <class Rows>
  KVPOLICY_KERNEL void load(Rows const& keys, std::int64_t offset, std::int64_t token, std::int32_t part, float (&x)[8]) const {
    float own[8];
    keys.load(offset, part, own);
    std::int64_t const cosines = (token - first) * 2 * pairs;
    float other[8] = {};  // each channel's partner
    if (halves && pairs % 8 == 0 && part * 8 < 2 * pairs) {
      keys.load(offset, part * 8 < pairs ? part + pairs / 8 : part - pairs / 8, other);
    }
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) {
      std::int32_t const channel = part * 8 + i;
      x[i] = own[i];
      if (channel >= 2 * pairs) continue;
      bool const low = halves ? channel < pairs : i % 2 == 0;
      std::int32_t const pair = halves ? (low ? channel : channel - pairs) : channel / 2;
      float partner = halves ? other[i] : own[i ^ 1];
      if (halves && pairs % 8 != 0) partner = keys.one(offset, low ? channel + pairs : channel - pairs);
      float const c = table[cosines + pair];
      float const s = table[cosines + pairs + pair];
      x[i] = low ? c * own[i] + s * partner : c * own[i] - s * partner;
    }
  }

  /// The channel that rotates with `channel`.
  KVPOLICY_KERNEL std::int32_t partner(std::int32_t channel) const {
    if (!halves) return channel ^ 1;
    return channel < pairs ? channel + pairs : channel - pairs;
  }

  /// A channel of what was rotated as the key of token `from`, rotated as that of token `to`; of a table from token 0 on.
  KVPOLICY_KERNEL float moved(std::int32_t channel, float own, float other, std::int64_t from, std::int64_t to) const {
    bool const low = halves ? channel < pairs : channel % 2 == 0;
    std::int32_t const pair = halves ? (low ? channel : channel - pairs) : channel / 2;
    float const x = low ? own : other;
    float const y = low ? other : own;
    float const c = table[from * 2 * pairs + pair];
    float const s = table[from * 2 * pairs + pairs + pair];
    float const before_x = c * x + s * y;
    float const before_y = c * y - s * x;
    float const to_c = table[to * 2 * pairs + pair];
    float const to_s = table[to * 2 * pairs + pairs + pair];
    return low ? to_c * before_x - to_s * before_y : to_c * before_y + to_s * before_x;
  }
};

/// How far the rotary embedding rotated each token's key. All of it lies in device memory: a step may be captured before the
/// first prompt brings the embedding.
struct batch_rope_angles {
  enum fact { pairs, neighbours, facts };
  buffer<float const> angles;      ///< `[tokens, 2, pairs]`: cosines, then sines
  buffer<std::int32_t const> how;  ///< `[facts]`: pairs, 0: not rotated; 1: neighbours rotate together; null: 0 pairs
  std::int64_t first = 0;          ///< the angles' first token

  template <class B>
  KVPOLICY_KERNEL auto in(B& block) const {
    using reader = rope_reader<decltype(block.global(angles))>;
    if (how.data == nullptr) return reader{block.global(angles), first};
    std::int32_t const count = block.global(how)[pairs];
    std::int32_t const apart = block.global(how)[neighbours];
    return reader{block.global(angles), first, count, apart == 0};
  }
};

}  // namespace kvpolicy::gpu::detail
