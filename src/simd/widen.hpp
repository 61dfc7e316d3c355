// Rows that no kernel reads where they lie: copies as floats.
#pragma once

#include <cstddef>
#include <span>

#include "kvpolicy/rows.hpp"

namespace kvpolicy::simd {

/// Copies contiguous rows of blocks, given by address: `[count, dims]`, dims a multiple of 32.
using widen_function = void (*)(std::byte const* const* from, std::int64_t count, element_type type, std::int64_t dims,
                                float* to);

/// For the best instruction set that may be used, see best_kernels.
widen_function best_widen() noexcept;

/// Copies one head's rows of a few tokens, which are not plain, to `copies`, `[tokens, head_dim]`; `address` gets where each
/// copy is, and has room for them.
inline void copy_rows(rows const& from, std::int64_t head, std::span<std::int64_t const> tokens, widen_function widen,
                      float* copies, std::byte const** address) noexcept {
  auto const place = [&](std::size_t i) { return copies + i * static_cast<std::size_t>(from.head_dim); };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (from.contiguous()) address[i] = from.address({head}, {tokens[i]});
    else from.load({head}, {tokens[i]}, {place(i), static_cast<std::size_t>(from.head_dim)});
  }
  if (from.contiguous()) widen(address, std::ssize(tokens), from.type, from.head_dim, copies);
  for (std::size_t i = 0; i < tokens.size(); ++i) address[i] = reinterpret_cast<std::byte const*>(place(i));
}

}  // namespace kvpolicy::simd
