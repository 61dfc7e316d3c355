// Primitives pool_mean, pool_bounds and pool_mean_deviation: summaries of units of consecutive tokens, updated by new tokens.
#pragma once

#include <cmath>
#include <span>

#include "kvpolicy/queries.hpp"
#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// The angles by which a rotary embedding rotates the key of each token. Token 0 is at position 0.
struct rope_angles {
  float const* angles = nullptr;  ///< `[tokens, 2, pairs]`: cosines, then sines; null: keys are not rotated
  std::int64_t pairs = 0;         ///< rotated channel pairs
  rotation::pairing how = rotation::pairing::halves;

  /// Removes the rotation of a token's key, in place.
  /// @param token  its index in the sequence
  /// @param row  `[head_dim]`
  constexpr void undo(std::int64_t token, float* row) const noexcept { rotate(token, row, 1); }
  /// Rotates a row, in place, as the embedding rotates the key of a token.
  /// @param token, row  as in undo
  constexpr void redo(std::int64_t token, float* row) const noexcept { rotate(token, row, -1); }

 private:
  constexpr void rotate(std::int64_t token, float* row, float back) const noexcept {
    float const* const cosines = angles + token * 2 * pairs;
    float const* const sines = cosines + pairs;
    bool const halves = how == rotation::pairing::halves;
    std::int64_t const step = halves ? 1 : 2;
    float* const other = row + (halves ? pairs : 1);
    for (std::int64_t i = 0; i < pairs; ++i) {
      float const x = row[i * step];
      float const y = other[i * step];
      float const sine = back * sines[i];
      row[i * step] = cosines[i] * x + sine * y;
      other[i * step] = cosines[i] * y - sine * x;
    }
  }
};

/// Writes the angles of tokens 0, 1, ..., as rope_angles reads them.
/// @param rope  the rotary embedding
/// @param angles  `[tokens, 2, rope.pairs]`: cosines, then sines; its size sets the number of tokens
inline void write_rope_angles(rotation const& rope, std::span<float> angles) noexcept {
  std::size_t at = 0;
  auto const pairs = static_cast<std::size_t>(rope.pairs);
  for (std::int64_t token = 0; pairs > 0 && at < angles.size(); ++token, at += 2 * pairs) {
    for (std::size_t i = 0; i < pairs; ++i) {
      double const angle = static_cast<double>(token) * static_cast<double>(rope.inverse_frequency[i]);
      angles[at + i] = static_cast<float>(std::cos(angle));
      angles[at + pairs + i] = static_cast<float>(std::sin(angle));
    }
  }
}

/// The tokens that a pool folds in. Token t belongs to unit (t - origin) / unit_size.
struct pooling {
  std::int64_t unit_size = 1;  ///< tokens
  std::int64_t first = 0;      ///< tokens [first, last) are folded in; tokens before `first` are in already
  std::int64_t last = 0;
  std::int64_t origin = 0;  ///< first token of unit 0; pool_mean and pool_mean_deviation alone
  rope_angles rotated{};    ///< rotation that is removed from keys first; pool_mean alone
};

/// Channel-wise bounds of units' keys, `[heads, units, 2, head_dim]`: a unit's maxima, then its minima.
/// Bounds of 16-bit keys are exact in 16 bits, so `type` is the keys' own. Bounds of keys in blocks are rounded to f16.
struct bounds_table {
  std::byte* data = nullptr;
  element_type type = element_type::f16;
  std::int64_t heads = 0;
  std::int64_t units = 0;  ///< capacity; sets the head stride
  std::int64_t head_dim = 0;

  constexpr std::int64_t bytes() const noexcept { return heads * units * 2 * head_dim * size_of(type); }
  /// Returns the bounds of a few heads.
  /// @param few  heads
  /// @return a table over the same memory
  constexpr bounds_table of(head_range few) const noexcept {
    bounds_table result = *this;
    result.data = unit(few.first, 0);
    result.heads = few.count;
    return result;
  }
  /// Returns the address of a unit's maxima. Its minima follow them.
  /// @param head, u  head and unit
  /// @return the first of 2 * head_dim elements
  constexpr std::byte* unit(std::int64_t head, std::int64_t u) const noexcept {
    return data + (head * units + u) * 2 * head_dim * size_of(type);
  }
};

/// Computes the mean of each unit's rows, all heads side by side: means(u, column + h * head_dim + i) for channel i of head h.
/// A unit whose first token is in [first, last) begins afresh. A unit that is open at `first` continues from its earlier
/// tokens. O(tokens x heads x head_dim), in fp32. Any split of the same tokens into calls agrees within 1e-5 relative.
/// @param keys  `[heads, tokens, head_dim]`
/// @param what  units and tokens
/// @param means  `[units, >= column + heads * head_dim]`, read and written
/// @param column  where head 0 begins in a row of `means`
/// @param exec  the executor
template <class Memory, class Exec>
void pool_mean(basic_rows<Memory> const& keys, pooling const& what, table<float> means, std::int64_t column, Exec& exec) {
  exec.pool_mean(keys, what, means, column);
}

/// Computes the maximum and minimum of each unit's rows by channel. Units begin and continue as in pool_mean.
/// Bounds are exact and always finite. An infinity counts as the type's largest value. NaN elements are skipped. A channel with
/// NaN alone gets the type's largest value as minimum and the lowest as maximum, and so scores below any other.
/// @param keys  `[heads, tokens, head_dim]`
/// @param what  units and tokens; `origin` and `rotated` are not used
/// @param bounds  `[heads, units, 2, head_dim]`, read and written
/// @param exec  the executor
template <class Memory, class Exec>
void pool_bounds(basic_rows<Memory> const& keys, pooling const& what, bounds_table const& bounds, Exec& exec) {
  exec.pool_bounds(keys, what, bounds);
}

/// Computes each unit's mean +/- one standard deviation by channel, in the places of maxima and minima.
/// Units begin and continue as in pool_mean. A NaN makes both bounds of its unit and channel NaN.
/// @param keys  `[heads, tokens, head_dim]`
/// @param what  units and tokens; `rotated` is not used
/// @param moments  `[heads, bounds.units, 2, head_dim]`: a unit's means, then its sums of squared differences; read and written
/// @param bounds  `[heads, units, 2, head_dim]`
/// @param exec  the executor
template <class Memory, class Exec>
void pool_mean_deviation(basic_rows<Memory> const& keys, pooling const& what, float* moments, bounds_table const& bounds,
                         Exec& exec) {
  exec.pool_mean_deviation(keys, what, moments, bounds);
}

}  // namespace kvpolicy
