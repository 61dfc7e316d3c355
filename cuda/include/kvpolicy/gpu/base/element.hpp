// One element as memory holds it, and as kernels compute with it.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/base/block.hpp"

namespace kvpolicy::gpu {

/// The type that stores an element.
template <element_type E>
using stored = std::conditional_t<E == element_type::f32, float, std::uint16_t>;

/// Returns bytes as elements.
/// @param bytes  aligned to an element
template <element_type E>
constexpr buffer<stored<E>> elements_of(buffer<std::byte> bytes) noexcept {
  return {reinterpret_cast<stored<E>*>(bytes.data), bytes.size / static_cast<std::int64_t>(sizeof(stored<E>))};
}

/// Converts a stored element to float, exactly.
/// @param value  the element
template <element_type E>
KVPOLICY_KERNEL float widened(stored<E> value) {
  if constexpr (E == element_type::f32) {
    return value;
  } else if constexpr (E == element_type::bf16) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(value) << 16);
  } else {
#if defined(__CUDA_ARCH__)
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
#else
    return half_to_float(value);
#endif
  }
}

/// Converts a float to a stored element, to nearest.
/// @param value  the float
template <element_type E>
KVPOLICY_KERNEL stored<E> narrowed(float value) {
  if constexpr (E == element_type::f32) {
    return value;
  } else {
#if defined(__CUDA_ARCH__)
    std::uint16_t narrow;
    if constexpr (E == element_type::f16) asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(value));
    else asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow) : "f"(value));
    return narrow;
#else
    return E == element_type::f16 ? float_to_half(value) : float_to_bfloat(value);
#endif
  }
}

/// Converts two floats to 16-bit elements, to nearest, the first in the word's lower half.
/// @param first  the one
/// @param second  the other
template <element_type E>
KVPOLICY_KERNEL std::uint32_t narrowed_pair(float first, float second) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;
  if constexpr (E == element_type::f16) asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(first), "f"(second));
  else asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(first), "f"(second));
  return pair;
#else
  return narrowed<E>(first) | static_cast<std::uint32_t>(narrowed<E>(second)) << 16;
#endif
}

/// Returns 2 to the power of x, 0 where that is below the smallest normal float. One instruction on a GPU.
/// @param x  the exponent
KVPOLICY_KERNEL float power_of_two(float x) {
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return x < -126 ? 0 : exp2f(x);
#endif
}

}  // namespace kvpolicy::gpu
