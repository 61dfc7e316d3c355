// Index types, element types and small non-owning array views, which all other headers use.
#pragma once

#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "kvpolicy/error.hpp"

namespace kvpolicy {

/// The host's memory. A view's memory is part of its type, so that an executor can't be given rows that it can't reach.
struct host_memory {};
/// A device's memory, which only the device's executors can reach.
struct device_memory {};

/// A layer of the model. It has a type of its own, as heads and tokens do, so that indices can't be swapped.
struct layer_id {
  std::int64_t value = 0;
  auto operator<=>(layer_id const&) const = default;
};
/// A KV head of a layer.
struct head_id {
  std::int64_t value = 0;
  auto operator<=>(head_id const&) const = default;
};
/// A token, counted in the sequence or among retained tokens.
struct token_index {
  std::int64_t value = 0;
  auto operator<=>(token_index const&) const = default;
};

/// The storage type of key or value elements.
/// The last six are ggml's: blocks of 32 elements, each with its own scale. Only host executors read them, and the head size
/// must be a multiple of 32.
enum class element_type : std::uint8_t { f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl };

/// Names a type.
/// @param type  the type
/// @return its name, as the enumerator is spelled
constexpr char const* name_of(element_type type) noexcept {
  constexpr char const* names[] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"};
  return names[static_cast<int>(type)];
}

/// Returns how many elements are stored together.
/// @param type  the type
/// @return 1, or the elements of a block
constexpr std::int64_t elements_of_block(element_type type) noexcept { return type <= element_type::bf16 ? 1 : 32; }

/// Returns the size of an element, or of a block.
/// @param type  the type
/// @return bytes
constexpr std::int64_t size_of(element_type type) noexcept {
  constexpr std::int64_t sizes[] = {4, 2, 2, 34, 18, 20, 22, 24, 18};
  return sizes[static_cast<int>(type)];
}

/// Computes the size of neighbouring elements.
/// @param type  the type
/// @param elements  their number, a multiple of elements_of_block(type)
/// @return bytes
constexpr std::int64_t bytes_of(element_type type, std::int64_t elements) noexcept {
  return elements / elements_of_block(type) * size_of(type);
}

/// Returns the type in which the bounds of units are stored.
/// @param type  the cache's type
/// @return the same type, or f16 for block types
constexpr element_type summary_type(element_type type) noexcept {
  return elements_of_block(type) == 1 ? type : element_type::f16;
}

/// Returns the largest finite value of an element.
/// @param type  f32, f16 or bf16
/// @return the value
constexpr float largest(element_type type) noexcept {
  return type == element_type::f16 ? 65504.0f : type == element_type::bf16 ? 0x1.fep127f : 0x1.fffffep127f;
}

/// Converts IEEE binary16 to float, exactly; subnormals, infinities and NaN included.
/// @param half  the bits
/// @return the value
constexpr float half_to_float(std::uint16_t half) noexcept {
  std::uint32_t const sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  std::uint32_t exponent = (half >> 10) & 0x1fu;
  std::uint32_t fraction = half & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {
    if (fraction == 0) return std::bit_cast<float>(sign);
    exponent = 1;  // subnormal: shift the leading one into place
    while ((fraction & 0x400u) == 0) {
      fraction <<= 1;
      --exponent;
    }
    fraction &= 0x3ffu;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

/// Converts float to IEEE binary16, to the nearest value, ties to even.
/// @param value  the value
/// @return the bits
constexpr std::uint16_t float_to_half(float value) noexcept {
  std::uint32_t const bits = std::bit_cast<std::uint32_t>(value);
  auto const sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  std::uint32_t const magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds past 65504
  auto const round = [](std::uint32_t kept, std::uint32_t rest, std::uint32_t middle) {
    return kept + (rest > middle || (rest == middle && (kept & 1u)) ? 1u : 0u);
  };
  if (magnitude < 0x38800000u) {  // subnormal half
    if (magnitude < 0x33000000u) return sign;
    std::uint32_t const shift = 126u - (magnitude >> 23);
    std::uint32_t const mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    return static_cast<std::uint16_t>(sign | round(mantissa >> shift, mantissa & ((1u << shift) - 1u), 1u << (shift - 1u)));
  }
  std::uint32_t const rebased = magnitude - 0x38000000u;
  return static_cast<std::uint16_t>(sign | round(rebased >> 13, rebased & 0x1fffu, 0x1000u));
}

/// Converts bfloat16 to float, exactly.
/// @param value  the bits
/// @return the value
constexpr float bfloat_to_float(std::uint16_t value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

/// Converts float to bfloat16, to the nearest value, ties to even.
/// @param value  the value
/// @return the bits
constexpr std::uint16_t float_to_bfloat(float value) noexcept {
  std::uint32_t const bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Rounds a float to an element of a type.
/// @param type  f32, f16 or bf16
/// @param value  the value
/// @return the nearest element, ties to even
constexpr float rounded_to(element_type type, float value) noexcept {
  if (type == element_type::f32) return value;
  return type == element_type::f16 ? half_to_float(float_to_half(value)) : bfloat_to_float(float_to_bfloat(value));
}

/// A non-owning table `[rows, columns]`. Rows may be wider in memory than the columns that are used.
template <class T>
struct table {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;  ///< elements from one row to the next

  /// Returns a row.
  /// @param r  the row
  /// @return `[columns]` elements
  constexpr T* row(std::int64_t r) const noexcept { return data + r * row_stride; }
  /// Returns an element.
  /// @param r  the row
  /// @param c  the column
  /// @return the element
  constexpr T& operator()(std::int64_t r, std::int64_t c) const noexcept { return row(r)[c]; }
  template <class U>
    requires(std::is_same_v<U, T const> && !std::is_const_v<T>)
  constexpr operator table<U>() const noexcept { return {data, rows, columns, row_stride}; }
};

/// The KV heads [first, first + count) of a layer.
struct head_range {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

}  // namespace kvpolicy
