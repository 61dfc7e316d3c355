// Rows that no kernel reads where they lie: copies as floats.
#pragma once

#include "kvpolicy/rows.hpp"

namespace kvpolicy::simd {

/// `to` gets a contiguous row's elements: `[dims]`, a multiple of 32; the type is one of blocks.
using widen_function = void (*)(std::byte const* row, element_type type, std::int64_t dims, float* to);

/// For the best instruction set that may be used, see best_kernels.
widen_function best_widen() noexcept;

/// Any row as floats: `[head_dim]`.
inline void copy_row(rows const& from, std::int64_t head, std::int64_t token, widen_function widen, float* to) noexcept {
  if (from.contiguous() && !from.plain()) return widen(from.address({head}, {token}), from.type, from.head_dim, to);
  from.load({head}, {token}, {to, static_cast<std::size_t>(from.head_dim)});
}

}  // namespace kvpolicy::simd
