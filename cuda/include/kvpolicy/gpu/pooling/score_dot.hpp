// Scores of units: the dot product of each unit's summary with one long vector.
#pragma once

#include "kvpolicy/gpu/base/device.hpp"

namespace kvpolicy::gpu::detail {

/// scores(s, i) = anchor(s) . vectors(s, units(s, i)). Half a block has a unit; blocks take what is named in turns.
struct score_dot_body {
  static constexpr unsigned threads = 512;
  static constexpr char const* name = "score_dot";
  static constexpr unsigned at_once = 2;  ///< units
  static constexpr unsigned of_unit = threads / at_once;
  struct arguments {
    buffer<float const> anchor;  ///< `[sequences, dims]`
    std::int64_t anchor_stride = 0;
    buffer<float const> vectors;  ///< `[sequences, all units, dims]`
    std::int64_t vector_sequence_stride = 0;
    std::int64_t vector_stride = 0;
    std::int64_t dims = 0;
    bool packed = false;               ///< strides, dims and addresses allow 16-byte loads
    buffer<std::int32_t const> units;  ///< `[sequences, stride]`, or none: unit i is the i-th from `first` on
    per_sequence first;
    per_sequence count;
    buffer<float> scores;  ///< `[sequences, stride]`
    std::int64_t stride = 0;
    std::int64_t blocks = 1;  ///< of a sequence
  };
  template <class B>
  struct shared {
    typename B::template array<float, threads / 32> sums;  ///< of each warp
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const sequence = block.y();
    std::int64_t const count = a.count.of(block, block.y());
    auto const anchor = block.global(a.anchor);
    auto const vectors = block.global(a.vectors);
    std::int64_t const from = sequence * a.anchor_stride;
    std::int64_t const first = a.first.of(block, block.y());
    auto const tile = block.tile();
    unsigned const half = block.thread() / of_unit;
    std::int64_t const thread = block.thread() % of_unit;
    for (std::int64_t base = block.x() * at_once; base < count; base += a.blocks * at_once) {
      std::int64_t const i = base + half;
      std::int64_t unit = first + i;
      if (a.units.data != nullptr && i < count) {
        std::int32_t const named = block.global(a.units)[sequence * a.stride + i];
        unit = named;
      }
      std::int64_t const at = sequence * a.vector_sequence_stride + unit * a.vector_stride;
      std::int64_t const dims = i < count ? a.dims : 0;
      float sum = 0;
      if (a.packed) {
        KVPOLICY_UNROLL_4
        for (std::int64_t d = thread * 4; d < dims; d += of_unit * 4) {
          pack const x = anchor.load(from + d);
          pack const y = vectors.load(at + d);
          KVPOLICY_UNROLL
          for (int j = 0; j < 4; ++j) sum += __builtin_bit_cast(float, x.word[j]) * __builtin_bit_cast(float, y.word[j]);
        }
      } else {
        for (std::int64_t d = thread; d < dims; d += of_unit) {
          float const x = anchor[from + d];
          float const y = vectors[at + d];
          sum += x * y;
        }
      }
      sum = lane_sum(tile, sum, 32);
      if (tile.lane() == 0) s.sums[tile.index()] = sum;
      block.sync();
      if (thread == 0 && i < count) {
        float total = 0;
        for (unsigned w = half * of_unit / 32; w < (half + 1) * of_unit / 32; ++w) {
          float const one = s.sums[w];
          total += one;
        }
        block.global(a.scores)[sequence * a.stride + i] = total;
      }
      block.sync();
    }
  }
};

/// The same, with `packed` set.
inline score_dot_body::arguments finished(score_dot_body::arguments a) noexcept {
  auto const aligned = [](void const* p) { return std::bit_cast<std::uintptr_t>(p) % 16 == 0; };
  a.packed = aligned(a.anchor.data) && aligned(a.vectors.data) && a.dims % 4 == 0 && a.anchor_stride % 4 == 0 &&
             a.vector_stride % 4 == 0 && a.vector_sequence_stride % 4 == 0;
  return a;
}

template <device D>
void launch_score_dot(D& device, score_dot_body::arguments a, std::int64_t max_units, std::int64_t sequences) {
  a = finished(a);
  a.blocks = blocks_of_row<score_dot_body>(device, max_units, score_dot_body::at_once, sequences);
  device.template launch<score_dot_body>({a.blocks, sequences, 1}, a);
}

}  // namespace kvpolicy::gpu::detail
