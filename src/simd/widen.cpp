#include "widen.hpp"

#include "kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "widen.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "storage-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace kvpolicy::simd::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR
void widen(std::byte const* const* from, std::int64_t count, element_type type, std::int64_t dims, float* to) {
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t i = 0; i < dims; ++i) *to++ = block_element(type, from[r] + i / 32 * size_of(type), i % 32);
  }
}
#else
using codes = hn::FixedTag<std::uint8_t, 16>;
using code_vector = hn::Vec<codes>;
constexpr codes c{};

HWY_INLINE code_vector load_codes(std::byte const* p) { return hn::LoadU(c, reinterpret_cast<std::uint8_t const*>(p)); }

HWY_INLINE vector half_at(std::byte const* p) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof bits);
  return f16::widened(hn::Set(f16::halves, bits));
}

/// scale * code + minimum, of a block's signed codes.
template <bool Minimum>
HWY_INLINE void scaled(std::int8_t const* from, vector scale, vector minimum, float* to) {
  constexpr hn::Rebind<std::int8_t, floats> narrow{};
  constexpr hn::RebindToSigned<floats> wide{};
  HWY_UNROLL(8)
  for (std::int64_t i = 0; i < 32; i += lanes) {
    vector const code = hn::ConvertTo(f, hn::PromoteTo(wide, hn::LoadU(narrow, from + i)));
    vector const product = hn::Mul(code, scale);
    hn::StoreU(Minimum ? hn::Add(product, minimum) : product, f, to + i);
  }
}

/// See block_element.
template <element_type Type>
HWY_INLINE void widen_row(std::byte const* row, std::int64_t dims, float* to) {
  constexpr bool minimum = Type == element_type::q4_1 || Type == element_type::q5_1;
  constexpr bool fifth = Type == element_type::q5_0 || Type == element_type::q5_1;
  constexpr std::int64_t fifths = minimum ? 4 : 2;
  for (std::int64_t i = 0; i < dims; i += 32, row += size_of(Type)) {
    vector const scale = half_at(row);
    if constexpr (Type == element_type::q8_0) {
      scaled<false>(reinterpret_cast<std::int8_t const*>(row + 2), scale, scale, to + i);
    } else {
      alignas(32) std::uint8_t unpacked[32];
      code_vector const both = load_codes(row + fifths + (fifth ? 4 : 0));
      code_vector low = hn::And(both, hn::Set(c, 15));
      code_vector high = hn::ShiftRight<4>(both);
      if constexpr (fifth) {
        auto const* const bits = reinterpret_cast<std::uint8_t const*>(row + fifths);
        low = hn::Or(low, hn::IfThenElseZero(hn::LoadMaskBits(c, bits), hn::Set(c, 16)));
        high = hn::Or(high, hn::IfThenElseZero(hn::LoadMaskBits(c, bits + 2), hn::Set(c, 16)));
      }
      if constexpr (Type == element_type::iq4_nl) {
        auto const values = hn::LoadU(c, reinterpret_cast<std::uint8_t const*>(iq4_nl_values.data()));
        low = hn::TableLookupBytes(values, low);
        high = hn::TableLookupBytes(values, high);
      } else if constexpr (!minimum) {
        low = hn::Sub(low, hn::Set(c, fifth ? 16 : 8));
        high = hn::Sub(high, hn::Set(c, fifth ? 16 : 8));
      }
      hn::Store(low, c, unpacked);
      hn::Store(high, c, unpacked + 16);
      scaled<minimum>(reinterpret_cast<std::int8_t const*>(unpacked), scale, minimum ? half_at(row + 2) : scale, to + i);
    }
  }
}

template <element_type Type>
void widen_rows(std::byte const* const* from, std::int64_t count, std::int64_t dims, float* to) {
  for (std::int64_t r = 0; r < count; ++r, to += dims) widen_row<Type>(from[r], dims, to);
}

void widen(std::byte const* const* from, std::int64_t count, element_type type, std::int64_t dims, float* to) {
  switch (type) {
    case element_type::q8_0:
      return widen_rows<element_type::q8_0>(from, count, dims, to);
    case element_type::q4_0:
      return widen_rows<element_type::q4_0>(from, count, dims, to);
    case element_type::q4_1:
      return widen_rows<element_type::q4_1>(from, count, dims, to);
    case element_type::q5_0:
      return widen_rows<element_type::q5_0>(from, count, dims, to);
    case element_type::q5_1:
      return widen_rows<element_type::q5_1>(from, count, dims, to);
    case element_type::iq4_nl:
      return widen_rows<element_type::iq4_nl>(from, count, dims, to);
    default:  // see copy_rows
      return;
  }
}
#endif

}  // namespace

widen_function widen_of() { return widen; }

}  // namespace kvpolicy::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvpolicy::simd {

HWY_EXPORT(widen_of);

widen_function best_widen() noexcept {
  held_back();
  static widen_function const chosen = HWY_DYNAMIC_DISPATCH(widen_of)();
  return chosen;
}

}  // namespace kvpolicy::simd
#endif
