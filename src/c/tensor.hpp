// A caller's tensor, checked before anything reads it: every refusal names the tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "kvpolicy.h"
#include "kvpolicy/rows.hpp"

namespace kvpolicy::c {

/// One axis of what is wanted: its name, and its extent or `any`.
struct axis {
  static constexpr std::int64_t any = -1;
  char const* name;
  std::int64_t extent = any;
};

inline axis key_axis(cache_shape const& shape) noexcept { return {"head_dim", shape.head_dim}; }
/// The same as the keys' where values are as wide.
inline axis value_axis(cache_shape const& shape) noexcept {
  return shape.values_dim() == shape.head_dim ? key_axis(shape) : axis{"value_dim", shape.values_dim()};
}

/// Where a tensor may be. Device 2 counts with its id alone.
struct place {
  bool host = true;
  bool cuda = false;
  std::int32_t cuda_id = 0;
};

/// What a tensor must be.
struct tensor_rule {
  char const* name;  ///< "keys"
  std::int64_t layer = -1;
  kvpolicy_dtype dtype{};
  place where{};
  bool dense_last = false;  ///< elements of the last axis must be neighbours
  bool apart = false;       ///< no two elements may share a place

  std::string named() const { return layer < 0 ? std::string(name) : std::string(name) + " of layer " + std::to_string(layer); }
};

/// A tensor that passed. Strides of axes with one element are what dense ones would be.
struct tensor {
  static constexpr std::size_t max_axes = 4;

  std::byte* data = nullptr;
  std::array<std::int64_t, max_axes> extent{};
  std::array<std::int64_t, max_axes> stride{};  ///< bytes
  bool on_device = false;
};

constexpr kvpolicy_dtype float32{2, 32, 1};
constexpr kvpolicy_dtype int32{0, 32, 1};

constexpr kvpolicy_dtype dtype_of(element_type type) noexcept {
  if (type == element_type::f32) return float32;
  return {static_cast<std::uint8_t>(type == element_type::f16 ? 2 : 4), 16, 1};
}

/// float32, or the 16-bit floats that a tensor has.
inline kvpolicy_dtype float_type_of(kvpolicy_tensor const* given) noexcept {
  bool const half = given != nullptr && given->dtype.bits == 16 && (given->dtype.code == 2 || given->dtype.code == 4);
  return half ? kvpolicy_dtype{given->dtype.code, 16, 1} : float32;
}
constexpr element_type element_of(kvpolicy_dtype type) noexcept {
  return type.bits == 32 ? element_type::f32 : type.code == 2 ? element_type::f16 : element_type::bf16;
}

/// Throws invalid_value that names the tensor and what is wrong with it. Reads the descriptor alone, never the data.
tensor checked(kvpolicy_tensor const* given, tensor_rule const& rule, std::span<axis const> axes);
inline tensor checked(kvpolicy_tensor const* given, tensor_rule const& rule, std::initializer_list<axis> axes) {
  return checked(given, rule, std::span<axis const>(axes.begin(), axes.size()));
}

}  // namespace kvpolicy::c
