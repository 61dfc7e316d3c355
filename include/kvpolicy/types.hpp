// Strong types, element types and the small array views that everything else speaks in.
#pragma once

#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kvpolicy/error.hpp"

namespace kvpolicy {

/// Where rows live. A view's memory is part of its type, so that an executor can't be handed what it can't reach.
struct host_memory {};
struct device_memory {};

/// Indices that swap easily, as types that don't.
struct layer_id {
  std::int64_t value = 0;
  auto operator<=>(layer_id const&) const = default;
};
struct head_id {
  std::int64_t value = 0;
  auto operator<=>(head_id const&) const = default;
};
struct token_index {
  std::int64_t value = 0;
  auto operator<=>(token_index const&) const = default;
};

/// Storage type of key or value elements. The last six are ggml's: blocks of 32 elements with a scale of their own, which host
/// executors read; a head size is a multiple of 32 then.
enum class element_type : std::uint8_t { f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl };

constexpr char const* name_of(element_type type) noexcept {
  constexpr char const* names[] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"};
  return names[static_cast<int>(type)];
}

/// Elements that are stored together: 1, or a block's.
constexpr std::int64_t elements_of_block(element_type type) noexcept { return type <= element_type::bf16 ? 1 : 32; }

/// Bytes of an element, or of a block.
constexpr std::int64_t size_of(element_type type) noexcept {
  constexpr std::int64_t sizes[] = {4, 2, 2, 34, 18, 20, 22, 24, 18};
  return sizes[static_cast<int>(type)];
}

/// Bytes of so many neighbours; whole blocks.
constexpr std::int64_t bytes_of(element_type type, std::int64_t elements) noexcept {
  return elements / elements_of_block(type) * size_of(type);
}

/// What units' bounds are stored in: the type itself, or f16 for blocks.
constexpr element_type summary_type(element_type type) noexcept {
  return elements_of_block(type) == 1 ? type : element_type::f16;
}

/// The largest finite value that an element can have.
constexpr float largest(element_type type) noexcept {
  return type == element_type::f16 ? 65504.0f : type == element_type::bf16 ? 0x1.fep127f : 0x1.fffffep127f;
}

/// IEEE binary16 to float, exact; subnormals, infinities and NaN included.
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

/// Float to IEEE binary16, to nearest, ties to even.
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

constexpr float bfloat_to_float(std::uint16_t value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

/// Float to bfloat16, to nearest, ties to even.
constexpr std::uint16_t float_to_bfloat(float value) noexcept {
  std::uint32_t const bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// A non-owning `[rows, columns]` table; rows may be wider than what is used of them.
template <class T>
struct table {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;  ///< elements

  constexpr T* row(std::int64_t r) const noexcept { return data + r * row_stride; }
  constexpr T& operator()(std::int64_t r, std::int64_t c) const noexcept { return row(r)[c]; }
  template <class U>
    requires(std::is_same_v<U, T const> && !std::is_const_v<T>)
  constexpr operator table<U>() const noexcept { return {data, rows, columns, row_stride}; }
};

/// KV heads [first, first + count) of a layer.
struct head_range {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Query heads of one token: `[q_heads, head_dim]` floats; head h reads KV head h / (q_heads / kv_heads).
struct query_heads {
  float const* data = nullptr;
  std::int64_t heads = 0;
  std::int64_t head_stride = 0;  ///< floats
  float scale = 1;               ///< multiplies q.k, 1 / sqrt(head_dim) in most models

  constexpr float const* head(std::int64_t h) const noexcept { return data + h * head_stride; }
  /// The query heads that read these KV heads, `group` to each.
  constexpr query_heads of(head_range kv, std::int64_t group) const noexcept {
    return {data + kv.first * group * head_stride, kv.count * group, head_stride, scale};
  }
};

/// Query heads of the last `tokens` tokens of a prompt: `[tokens, q_heads, head_dim]` floats, oldest first.
struct query_window {
  float const* data = nullptr;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t token_stride = 0;  ///< floats
  std::int64_t head_stride = 0;   ///< floats
  float scale = 1;

  constexpr float const* at(std::int64_t t, std::int64_t h) const noexcept { return data + t * token_stride + h * head_stride; }
  /// The query heads that read these KV heads, `group` to each.
  constexpr query_window of(head_range kv, std::int64_t group) const noexcept {
    return {data + kv.first * group * head_stride, tokens, kv.count * group, token_stride, head_stride, scale};
  }
  /// The last `count` of them.
  constexpr query_window last(std::int64_t count) const noexcept {
    return {data + (tokens - count) * token_stride, count, heads, token_stride, head_stride, scale};
  }
};

/// The rotary embedding of a model's keys: channel pair i turns by position * inverse_frequency[i].
struct rotation {
  enum class pairing : std::uint8_t { halves, neighbours };  ///< (i, i + pairs), or (2i, 2i + 1)

  float const* inverse_frequency = nullptr;  ///< `[pairs]`
  std::int64_t pairs = 0;                    ///< channels behind 2 * pairs are not rotated
  pairing how = pairing::halves;
};

}  // namespace kvpolicy
