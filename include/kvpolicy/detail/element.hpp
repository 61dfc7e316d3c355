// One element of a row: a number of its own, or one of a block of 32 in ggml's formats.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>

#include "kvpolicy/types.hpp"

namespace kvpolicy {

/// Element i of a contiguous row of f32, f16 or bf16.
inline float element_at(std::byte const* row, std::int64_t i, element_type type) noexcept {
  if (type == element_type::f32) {
    float value = 0;
    std::memcpy(&value, row + i * 4, sizeof value);
    return value;
  }
  std::uint16_t half = 0;
  std::memcpy(&half, row + i * 2, sizeof half);
  return type == element_type::f16 ? half_to_float(half) : bfloat_to_float(half);
}
/// Writes it, rounded to its type.
inline void put_element(std::byte* row, std::int64_t i, element_type type, float value) noexcept {
  if (type == element_type::f32) {
    std::memcpy(row + i * 4, &value, sizeof value);
    return;
  }
  std::uint16_t const half = type == element_type::f16 ? float_to_half(value) : float_to_bfloat(value);
  std::memcpy(row + i * 2, &half, sizeof half);
}

/// What iq4_nl's codes stand for.
inline constexpr std::array<std::int8_t, 16> iq4_nl_values{-127, -104, -83, -65, -49, -35, -22, -10,
                                                           1,    13,   25,  38,  53,  69,  89,  113};

/// Element i of 32: scale * code, and a minimum added in q4_1 and q5_1; fp32, of exact products. A block is the scale (f16),
/// the minimum if it has one (f16), the codes' fifth bits (32 of them) in q5, then codes: a byte each in q8_0, else 16 bytes
/// whose lower halves are elements 0 to 15 and whose upper ones are 16 to 31.
constexpr float block_element(element_type type, std::byte const* block, std::int64_t i) noexcept {
  auto const byte = [&](std::int64_t at) { return std::to_integer<unsigned>(block[at]); };
  auto const half = [&](std::int64_t at) { return half_to_float(static_cast<std::uint16_t>(byte(at) | byte(at + 1) << 8)); };
  float const scale = half(0);
  if (type == element_type::q8_0) return scale * static_cast<float>(static_cast<std::int8_t>(byte(2 + i)));
  bool const has_minimum = type == element_type::q4_1 || type == element_type::q5_1;
  bool const has_fifth = type == element_type::q5_0 || type == element_type::q5_1;
  std::int64_t const fifths = has_minimum ? 4 : 2;
  std::int64_t const codes = has_fifth ? fifths + 4 : fifths;
  unsigned code = byte(codes + i % 16) >> (i / 16 * 4) & 15u;
  if (type == element_type::iq4_nl) return scale * static_cast<float>(iq4_nl_values[code]);
  if (has_fifth) code |= (byte(fifths + i / 8) >> (i % 8) & 1u) << 4;
  if (has_minimum) return scale * static_cast<float>(code) + half(2);
  return scale * static_cast<float>(static_cast<int>(code) - (has_fifth ? 16 : 8));
}

}  // namespace kvpolicy
