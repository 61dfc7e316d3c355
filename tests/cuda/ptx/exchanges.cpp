// What the lanes of a warp give each other.
#include <array>
#include <bit>

#include "cuda/ptx/block.hpp"
#include "cuda/ptx/instruction.hpp"

namespace ptx {

namespace {

enum class mode { up, down, bfly, idx };

/// Operands: to, whether the source lane is in range, from, b, and c: the segments' mask above their clamp.
template <mode Mode>
void shuffle(warp& on, instruction const& what, lane_mask lanes) {
  auto* const to = on.values<std::uint32_t>(what.at[0]);
  lane_mask& in_range = on.predicate(what.at[1]);
  auto const* const given = on.values<std::uint32_t>(what.at[2]);
  auto const* const b = on.values<std::uint32_t>(what.at[3]);
  auto const* const c = on.values<std::uint32_t>(what.at[4]);
  std::array<std::uint32_t, warp_size> from;
  for (std::size_t lane = 0; lane < warp_size; ++lane) from[lane] = given[lane];
  for (lane_mask rest = lanes; rest != 0; rest &= rest - 1) {
    auto const lane = static_cast<unsigned>(std::countr_zero(rest));
    unsigned const segments = c[lane] >> 8 & 31, by = b[lane] & 31;
    unsigned const first = lane & segments, last = first | (c[lane] & 31 & ~segments);
    unsigned source = 0;
    bool in = true;
    if constexpr (Mode == mode::up) source = lane - by, in = static_cast<int>(source) >= static_cast<int>(last);
    if constexpr (Mode == mode::down) source = lane + by, in = source <= last;
    if constexpr (Mode == mode::bfly) source = lane ^ by, in = source <= last;
    if constexpr (Mode == mode::idx) source = first | (by & ~segments), in = source <= last;
    if (!in) source = lane;
    if ((lanes >> source & 1) == 0) throw fault("a shuffle from a lane that is not there");
    to[lane] = from[source];
    in_range = (in_range & ~(1U << lane)) | static_cast<lane_mask>(in) << lane;
  }
}

void ballot(warp& on, instruction const& what, lane_mask lanes) {
  lane_mask const votes = on.predicate(what.at[1]) & lanes;
  for (lane_mask rest = lanes; rest != 0; rest &= rest - 1)
    on.values<std::uint32_t>(what.at[0])[std::countr_zero(rest)] = votes;
}

float half(std::uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
float bfloat(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

/// D = A B + C of 16 x 16, 16 x 8 and 16 x 8. Lane 4 g + t holds of A rows g and g + 8, of B column g, and of C and D rows g
/// and g + 8 at columns 2 t and 2 t + 1; a register of A and B holds two neighbours along k, from 2 t or from 2 t + 8. Sums are
/// rounded once.
template <float (*Element)(std::uint16_t)>
void multiply(warp& on, instruction const& what, lane_mask) {
  std::array<std::array<float, 16>, 16> a;
  std::array<std::array<float, 16>, 8> b;
  auto const fill = [&](auto& row, unsigned k, std::uint32_t pair) {
    row[k] = Element(static_cast<std::uint16_t>(pair));
    row[k + 1] = Element(static_cast<std::uint16_t>(pair >> 16));
  };
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    unsigned const g = lane / 4, t = lane % 4;
    for (unsigned i = 0; i < 4; ++i)
      fill(a[g + 8 * (i % 2)], 2 * t + 8 * (i / 2), on.values<std::uint32_t>(what.at[4 + i])[lane]);
    for (unsigned i = 0; i < 2; ++i) fill(b[g], 2 * t + 8 * i, on.values<std::uint32_t>(what.at[8 + i])[lane]);
  }
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    for (unsigned i = 0; i < 4; ++i) {
      unsigned const row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
      double sum = on.values<float>(what.at[10 + i])[lane];
      for (unsigned k = 0; k < 16; ++k) sum += double{a[row][k]} * b[column][k];
      on.values<float>(what.at[i])[lane] = static_cast<float>(sum);
    }
  }
}

/// Lane 4 r + t holds row r at columns 2 t and 2 t + 1, before and after.
void transpose(warp& on, instruction const& what, lane_mask) {
  std::array<std::array<std::uint16_t, 8>, 8> matrix;
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    std::uint32_t const pair = on.values<std::uint32_t>(what.at[1])[lane];
    matrix[lane / 4][lane % 4 * 2] = static_cast<std::uint16_t>(pair);
    matrix[lane / 4][lane % 4 * 2 + 1] = static_cast<std::uint16_t>(pair >> 16);
  }
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    std::uint32_t const low = matrix[lane % 4 * 2][lane / 4], high = matrix[lane % 4 * 2 + 1][lane / 4];
    on.values<std::uint32_t>(what.at[0])[lane] = high << 16 | low;
  }
}

}  // namespace

action find_exchange(std::string_view opcode) {
  if (opcode == "shfl.sync.up.b32") return shuffle<mode::up>;
  if (opcode == "shfl.sync.down.b32") return shuffle<mode::down>;
  if (opcode == "shfl.sync.bfly.b32") return shuffle<mode::bfly>;
  if (opcode == "shfl.sync.idx.b32") return shuffle<mode::idx>;
  if (opcode == "vote.sync.ballot.b32") return ballot;
  if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") return multiply<half>;
  if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") return multiply<bfloat>;
  if (opcode == "movmatrix.sync.aligned.m8n8.trans.b16") return transpose;
  return nullptr;
}

}  // namespace ptx
