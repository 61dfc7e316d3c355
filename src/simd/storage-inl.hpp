// Vectors of floats, and how elements of the storage types are read and written. Included once per instruction set.
#if defined(KVPOLICY_SIMD_STORAGE) == defined(HWY_TARGET_TOGGLE)
#ifdef KVPOLICY_SIMD_STORAGE
#undef KVPOLICY_SIMD_STORAGE
#else
#define KVPOLICY_SIMD_STORAGE
#endif

#include <hwy/highway.h>

#include "kvpolicy/types.hpp"

HWY_BEFORE_NAMESPACE();
namespace kvpolicy::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using floats = hn::ScalableTag<float>;
using vector = hn::Vec<floats>;
// Sums live in arrays of vectors: their loops are unrolled, or they would live in memory.
constexpr floats f{};
constexpr auto lanes = static_cast<std::int64_t>(hn::MaxLanes(f));  // exact: targets of unknown size are disabled

// Storage types, each with how a vector and one element are read and written.
struct f32 {
  static constexpr std::int64_t size = 4;
  static constexpr std::uint32_t exponent = 0x7f800000u;  ///< all of it: an infinity or a NaN
  static HWY_INLINE vector load(std::byte const* p) { return hn::LoadU(f, reinterpret_cast<float const*>(p)); }
  static HWY_INLINE void store(vector v, std::byte* p) { hn::StoreU(v, f, reinterpret_cast<float*>(p)); }
  static HWY_INLINE float get(std::byte const* p) { return *reinterpret_cast<float const*>(p); }
  static HWY_INLINE void put(float v, std::byte* p) { *reinterpret_cast<float*>(p) = v; }
};
struct f16 {
  static constexpr std::int64_t size = 2;
  static constexpr std::uint16_t exponent = 0x7c00u;
  static constexpr hn::Rebind<hwy::float16_t, floats> tag{};
  static constexpr hn::Rebind<std::uint16_t, floats> halves{};
  static HWY_INLINE vector load(std::byte const* p) {
    return widened(hn::LoadU(halves, reinterpret_cast<std::uint16_t const*>(p)));
  }
  static HWY_INLINE vector widened(hn::Vec<decltype(halves)> half) {
    vector const wide = hn::PromoteTo(f, hn::BitCast(tag, half));
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
    // Without F16C Highway makes 65536 of an infinity.
    constexpr hn::RebindToUnsigned<floats> words{};
    auto const bits = hn::PromoteTo(words, half);
    auto const all = hn::Set(words, static_cast<std::uint32_t>(exponent));
    auto const special = hn::IfThenElseZero(hn::Eq(hn::And(bits, all), all), hn::Set(words, 0x7f800000u));
    return hn::BitCast(f, hn::Or(hn::BitCast(words, wide), special));
#else
    return wide;
#endif
  }
  static HWY_INLINE void store(vector v, std::byte* p) {
    hn::StoreU(hn::DemoteTo(tag, v), tag, reinterpret_cast<hwy::float16_t*>(p));
  }
  static HWY_INLINE float get(std::byte const* p) { return half_to_float(*reinterpret_cast<std::uint16_t const*>(p)); }
  static HWY_INLINE void put(float v, std::byte* p) { *reinterpret_cast<std::uint16_t*>(p) = float_to_half(v); }
};
struct bf16 {
  static constexpr std::int64_t size = 2;
  static constexpr std::uint16_t exponent = 0x7f80u;
  static constexpr hn::Rebind<std::uint16_t, floats> bits{};
  static constexpr hn::RebindToUnsigned<floats> wide{};
  static HWY_INLINE vector load(std::byte const* p) {
    auto const half = hn::PromoteTo(wide, hn::LoadU(bits, reinterpret_cast<std::uint16_t const*>(p)));
    return hn::BitCast(f, hn::ShiftLeft<16>(half));
  }
  static HWY_INLINE void store(vector v, std::byte* p) {  // exact: what is stored was loaded from bf16
    alignas(64) std::uint32_t widened[hn::MaxLanes(f)];
    hn::Store(hn::BitCast(wide, v), wide, widened);
    for (std::size_t i = 0; i < hn::Lanes(f); ++i) {
      reinterpret_cast<std::uint16_t*>(p)[i] = static_cast<std::uint16_t>(widened[i] >> 16);
    }
  }
  static HWY_INLINE float get(std::byte const* p) { return bfloat_to_float(*reinterpret_cast<std::uint16_t const*>(p)); }
  static HWY_INLINE void put(float v, std::byte* p) { *reinterpret_cast<std::uint16_t*>(p) = float_to_bfloat(v); }
};

template <class Body>
HWY_INLINE void with_type(element_type type, Body body) {
  switch (type) {
    case element_type::f32:
      return body(f32{});
    case element_type::f16:
      return body(f16{});
    case element_type::bf16:
      return body(bf16{});
    default:  // blocks are copied as floats before any kernel sees them
      return;
  }
}

}  // namespace kvpolicy::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
