// Queries or outputs as kernels read and write them: floats, or elements of 16 bits.
#pragma once

#include "kvpolicy/gpu/base/block.hpp"
#include "kvpolicy/gpu/base/element.hpp"

namespace kvpolicy::gpu {

/// Queries or outputs: vectors of floats or 16-bit elements, which are read or written once.
struct vector_rows {
  void* base = nullptr;
  std::int64_t elements = 0;  ///< from base on, for the GPU emulator
  element_type type = element_type::f32;
  std::int64_t sequence_stride = 0;  ///< elements
  std::int64_t token_stride = 0;     ///< elements
  std::int64_t head_stride = 0;      ///< elements
  row_map rows{};

  /// Returns the first element of a sequence.
  /// @param block,sequence  the thread's block, and the sequence
  template <class B>
  KVPOLICY_KERNEL std::int64_t begin(B& block, unsigned sequence) const {
    return rows.of(block, sequence) * sequence_stride;
  }
  /// Returns the elements as a buffer of their type.
  template <element_type E>
  constexpr buffer<stored<E>> as() const noexcept {
    return {static_cast<stored<E>*>(base), elements};
  }
};

/// Reads element i of vectors.
/// @param block  the thread's block
/// @param from  the vectors
/// @param i  which element
template <class B>
KVPOLICY_KERNEL float get(B& block, vector_rows const& from, std::int64_t i) {
  if (from.type == element_type::f32) return block.global(buffer<float const>(from.as<element_type::f32>()))[i];
  std::uint16_t const half = block.global(buffer<std::uint16_t const>(from.as<element_type::f16>()))[i];
  return from.type == element_type::f16 ? widened<element_type::f16>(half) : widened<element_type::bf16>(half);
}

/// Reads eight elements of vectors: as get(), but the type is looked at once.
/// @param block  the thread's block
/// @param from  the vectors
/// @param first  the first element
/// @param x  where they go
template <class B>
KVPOLICY_KERNEL void get_eight(B& block, vector_rows const& from, std::int64_t first, float (&x)[8]) {
  if (from.type == element_type::f32) {
    auto const floats = block.global(buffer<float const>(from.as<element_type::f32>()));
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) x[i] = floats[first + i];
    return;
  }
  auto const halves = block.global(buffer<std::uint16_t const>(from.as<element_type::f16>()));
  KVPOLICY_UNROLL
  for (int i = 0; i < 8; ++i) {
    std::uint16_t const half = halves[first + i];
    x[i] = from.type == element_type::f16 ? widened<element_type::f16>(half) : widened<element_type::bf16>(half);
  }
}

/// Writes element i of vectors.
/// @param block  the thread's block
/// @param to  the vectors
/// @param i  which element
/// @param value  the element
template <class B>
KVPOLICY_KERNEL void put(B& block, vector_rows const& to, std::int64_t i, float value) {
  if (to.type == element_type::f32) block.global(to.as<element_type::f32>())[i] = value;
  else if (to.type == element_type::f16) block.global(to.as<element_type::f16>())[i] = narrowed<element_type::f16>(value);
  else block.global(to.as<element_type::bf16>())[i] = narrowed<element_type::bf16>(value);
}

}  // namespace kvpolicy::gpu
