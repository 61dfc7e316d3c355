// Compiled once per instruction set by Highway's foreach_target.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)  // vectors are kept in arrays
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "block_kernels.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstring>

#include "block_kernels.hpp"
#include "kernels.hpp"
#include "storage-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace kvpolicy::simd::HWY_NAMESPACE {
namespace block {

constexpr std::int64_t vectors = tile_queries / lanes;
static_assert(vectors * lanes == tile_queries);

/// 2^x within 3e-7 of it, for finite x or -inf: 1 for 0, 0 from -127 down.
HWY_INLINE vector exponential(vector x) {
  hn::RebindToUnsigned<floats> const bits;
  // Added to a number below 2^22, it leaves the nearest whole number in the lowest bits.
  vector const magic = hn::Set(f, 12582912.0f);
  vector const bounded = hn::Max(x, hn::Set(f, -127.0f));
  vector const shifted = hn::Add(bounded, magic);
  vector const r = hn::Sub(bounded, hn::Sub(shifted, magic));
  vector power = hn::Set(f, 1.32764725e-3f);
  power = hn::MulAdd(power, r, hn::Set(f, 9.67554096e-3f));
  power = hn::MulAdd(power, r, hn::Set(f, 5.55071309e-2f));
  power = hn::MulAdd(power, r, hn::Set(f, 2.40221202e-1f));
  power = hn::MulAdd(power, r, hn::Set(f, 6.93146944e-1f));
  power = hn::MulAdd(power, r, hn::Set(f, 1.0f));
  return hn::BitCast(f, hn::Add(hn::BitCast(bits, power), hn::ShiftLeft<23>(hn::BitCast(bits, shifted))));
}

/// A row as floats, and zeros behind it; whether all are finite, by their bits: not every target widens an infinity of f16.
template <class Type>
HWY_INLINE bool widen(std::byte const* row, std::int64_t dims, float* to) {
  using word = std::remove_const_t<decltype(Type::exponent)>;
  hn::Rebind<word, floats> const words;
  auto const exponent = hn::Set(words, Type::exponent);
  auto unlike = hn::Zero(words);
  std::int64_t i = 0;
  for (; i + lanes <= dims; i += lanes) {
    auto const bits = hn::LoadU(words, reinterpret_cast<word const*>(row + i * Type::size));
    unlike = hn::Or(unlike, hn::VecFromMask(words, hn::Eq(hn::And(bits, exponent), exponent)));
    hn::StoreU(Type::load(row + i * Type::size), f, to + i);
  }
  bool finite = hn::AllTrue(words, hn::Eq(unlike, hn::Zero(words)));
  for (; i < dims; ++i) {
    word bits = 0;
    std::memcpy(&bits, row + i * Type::size, sizeof bits);
    finite = finite && (bits & Type::exponent) != Type::exponent;
    to[i] = Type::get(row + i * Type::size);
  }
  for (; i < padded(dims); ++i) to[i] = 0;
  return finite;
}

bool pack_rows(std::byte const* const* rows, std::int64_t count, element_type type, std::int64_t dims, std::byte* packed) {
  auto* const to = reinterpret_cast<float*>(packed);
  bool finite = true;
  with_type(type, [&](auto storage) HWY_ATTR {
    for (std::int64_t r = 0; r < count; ++r) finite = widen<decltype(storage)>(rows[r], dims, to + r * padded(dims)) && finite;
  });
  std::int64_t const end = (count + tile_step - 1) / tile_step * tile_step;
  for (std::int64_t i = count * padded(dims); i < end * padded(dims); ++i) to[i] = 0;
  return finite;
}

bool pack_queries(float const* first, std::int64_t token_stride, std::int64_t count, std::int64_t dims, float factor,
                  std::byte* packed) {
  auto* const to = reinterpret_cast<float*>(packed);
  bool finite = true;
  for (std::int64_t i = 0; i < padded(dims); ++i) {
    for (std::int64_t q = 0; q < tile_queries; ++q) {
      float const x = i < dims && q < count ? first[q * token_stride + i] * factor : 0;
      finite = finite && x - x == 0;
      to[i * tile_queries + q] = x;
    }
  }
  return finite;
}

/// c `[rows, 32]` (+)= sum over i < steps of a(row, i) b(i, :), where a(r, i) is a[r * across + i * along].
template <bool Adds>
void multiply(float const* a, std::int64_t across, std::int64_t along, std::int64_t steps, std::int64_t rows, float const* b,
              float* c) {
  constexpr int tall = HWY_TARGET <= HWY_AVX3 ? 8 : 4;  // sums that fit the registers, beside b's vectors
  constexpr int wide = lanes * 2 <= tile_queries ? 2 : 1;
  for (std::int64_t r = 0; r < rows; r += tall) {
    for (std::int64_t v = 0; v < vectors; v += wide) {
      float* const to = c + r * tile_queries + v * lanes;
      vector sum[tall][wide];
      HWY_UNROLL(8)
      for (int i = 0; i < tall; ++i) {
        HWY_UNROLL(2)
        for (int j = 0; j < wide; ++j) sum[i][j] = Adds ? hn::Load(f, to + i * tile_queries + j * lanes) : hn::Zero(f);
      }
      float const* from = a + r * across;
      float const* by = b + v * lanes;
      for (std::int64_t s = 0; s < steps; ++s, from += along, by += tile_queries) {
        vector right[wide];
        HWY_UNROLL(2)
        for (int j = 0; j < wide; ++j) right[j] = hn::Load(f, by + j * lanes);
        HWY_UNROLL(8)
        for (int i = 0; i < tall; ++i) {
          vector const left = hn::Set(f, from[i * across]);
          HWY_UNROLL(2)
          for (int j = 0; j < wide; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
        }
      }
      HWY_UNROLL(8)
      for (int i = 0; i < tall; ++i) {
        HWY_UNROLL(2)
        for (int j = 0; j < wide; ++j) hn::Store(sum[i][j], f, to + i * tile_queries + j * lanes);
      }
    }
  }
}

void products(std::byte const* keys, std::byte const* queries, std::int64_t rows, std::int64_t dims, element_type,
              float* logits) {
  multiply<false>(reinterpret_cast<float const*>(keys), padded(dims), 1, dims, rows, reinterpret_cast<float const*>(queries),
                  logits);
}

void accumulate(std::byte const* values, float const* weights, std::int64_t rows, std::int64_t dims, element_type,
                float* sums) {
  multiply<true>(reinterpret_cast<float const*>(values), 1, padded(dims), rows, padded(dims), weights, sums);
}

/// To the nearest bf16.
HWY_INLINE vector rounded(vector x) {
  hn::RebindToUnsigned<floats> const bits;
  return hn::BitCast(f, hn::And(hn::Add(hn::BitCast(bits, x), hn::Set(bits, 0x8000u)), hn::Set(bits, 0xffff0000u)));
}

/// Two rows of bf16 as pairs.
HWY_INLINE void store_pairs(vector even, vector odd, float* at) {
  hn::RebindToUnsigned<floats> const bits;
  hn::Store(hn::BitCast(f, hn::Or(hn::ShiftRight<16>(hn::BitCast(bits, even)), hn::BitCast(bits, odd))), f, at);
}

void add_terms(query_tile const& tile, float* logits, std::int64_t rows, float const* key_places) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t v = 0; v < vectors; ++v) {
      float* const at = logits + r * tile_queries + v * lanes;
      vector x = hn::Load(f, at);
      if (tile.soft_cap != 0) {
        vector const cap = hn::Set(f, tile.soft_cap);
        x = hn::Mul(cap, hn::Tanh(f, hn::Div(x, cap)));
      }
      if (tile.slope != 0) {
        vector const behind = hn::Sub(hn::Set(f, key_places[r]), hn::LoadU(f, tile.places + v * lanes));
        x = hn::MulAdd(hn::Set(f, tile.slope), behind, x);
      }
      hn::Store(x, f, at);
    }
  }
}

void weigh(query_tile const& tile, float* logits, std::int64_t rows, std::int64_t first, bool masked, float const* key_places,
           std::int64_t dims, bool pairs) {
  if (tile.soft_cap != 0 || tile.slope != 0) add_terms(tile, logits, rows, key_places);
  hn::RebindToSigned<floats> const whole;
  bool rose = false;
  alignas(64) float shrink[tile_queries];
  for (std::int64_t v = 0; v < vectors; ++v) {
    float* const column = logits + v * lanes;
    if (masked) {
      vector const nothing = hn::Set(f, -HUGE_VALF);
      auto const begin = hn::LoadU(whole, tile.begin + v * lanes);
      auto const end = hn::LoadU(whole, tile.end + v * lanes);
      for (std::int64_t r = 0; r < rows; ++r) {
        auto const at = hn::Set(whole, static_cast<std::int32_t>(first + r));
        auto const seen = hn::AndNot(hn::VecFromMask(whole, hn::Gt(begin, at)), hn::VecFromMask(whole, hn::Gt(end, at)));
        float* const x = column + r * tile_queries;
        hn::Store(hn::IfThenElse(hn::MaskFromVec(hn::BitCast(f, seen)), hn::Load(f, x), nothing), f, x);
      }
    }
    vector const before = hn::Load(f, tile.most + v * lanes);
    vector most[2] = {before, before};
    for (std::int64_t r = 0; r < rows; r += 2) {
      most[0] = hn::Max(most[0], hn::Load(f, column + r * tile_queries));
      most[1] = hn::Max(most[1], hn::Load(f, column + (r + 1) * tile_queries));
    }
    vector const now = hn::Max(most[0], most[1]);
    vector const less = exponential(hn::Sub(before, now));
    rose = rose || !hn::AllTrue(f, hn::Eq(before, now));
    hn::Store(less, f, shrink + v * lanes);
    hn::Store(now, f, tile.most + v * lanes);
    vector total[2] = {hn::Mul(hn::Load(f, tile.total + v * lanes), less), hn::Zero(f)};
    for (std::int64_t r = 0; r < rows; r += 2) {
      float* const at = column + r * tile_queries;
      vector even = exponential(hn::Sub(hn::Load(f, at), now));
      vector odd = exponential(hn::Sub(hn::Load(f, at + tile_queries), now));
      if (pairs) {  // what is multiplied is what is added up: rounding does not make weights' sum other than 1
        even = rounded(even);
        odd = rounded(odd);
      }
      total[0] = hn::Add(total[0], even);
      total[1] = hn::Add(total[1], odd);
      if (pairs) {
        store_pairs(even, odd, at);
      } else {
        hn::Store(even, f, at);
        hn::Store(odd, f, at + tile_queries);
      }
    }
    hn::Store(hn::Add(total[0], total[1]), f, tile.total + v * lanes);
  }
  if (!rose) return;
  for (std::int64_t d = 0; d < padded(dims); ++d) {
    for (std::int64_t v = 0; v < vectors; ++v) {
      float* const at = tile.sums + d * tile_queries + v * lanes;
      hn::Store(hn::Mul(hn::Load(f, at), hn::Load(f, shrink + v * lanes)), f, at);
    }
  }
}

}  // namespace block

block_kernels const& block_table() {
  static block_kernels const made{.instruction_set = hwy::TargetName(HWY_TARGET),
                                  .pairs = false,
                                  .enter = [] {},
                                  .leave = [] {},
                                  .pack_queries = block::pack_queries,
                                  .pack_keys = block::pack_rows,
                                  .pack_values = block::pack_rows,
                                  .products = block::products,
                                  .accumulate = block::accumulate};
  return made;
}

weigh_function weigh_of() { return block::weigh; }

}  // namespace kvpolicy::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvpolicy::simd {

HWY_EXPORT(block_table);
HWY_EXPORT(weigh_of);

block_kernels const& best_block_kernels() noexcept {
  block_kernels const* const tiles = held_back() ? nullptr : bf16_tiles();
  return tiles != nullptr ? *tiles : HWY_DYNAMIC_DISPATCH(block_table)();
}

weigh_function best_weigh() noexcept {
  held_back();
  return HWY_DYNAMIC_DISPATCH(weigh_of)();
}

}  // namespace kvpolicy::simd
#endif
