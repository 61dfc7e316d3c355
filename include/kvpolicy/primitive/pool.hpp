// Primitives pool_mean and pool_bounds: one summary for each unit of consecutive tokens, kept up to date as tokens arrive.
#pragma once

#include <cmath>
#include <span>

#include "kvpolicy/view.hpp"

namespace kvpolicy {

/// How far a model's rotary embedding rotated the key of each token, the first one at position 0.
struct rope_angles {
  float const* angles = nullptr;  ///< `[tokens, 2, pairs]`: cosines, then sines; null: keys are not rotated
  std::int64_t pairs = 0;
  rotation::pairing how = rotation::pairing::halves;

  /// Turns the key of `token` back, in place: its channels before the embedding.
  constexpr void undo(std::int64_t token, float* row) const noexcept { rotate(token, row, 1); }
  /// Rotates a row as the embedding rotates the key of `token`, in place.
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

/// Writes the angles of tokens 0, 1, ...: `[angles.size() / (2 rope.pairs), 2, rope.pairs]`.
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

/// Which tokens to fold into which units: token t belongs to unit (t - origin) / unit_size.
struct pooling {
  std::int64_t unit_size = 1;  ///< tokens
  std::int64_t first = 0;      ///< tokens [first, last) are folded in; those before `first` are in already
  std::int64_t last = 0;
  std::int64_t origin = 0;  ///< pool_mean and pool_mean_deviation alone
  rope_angles rotated{};    ///< pool_mean alone: keys are rotated back by these first
};

/// Channel-wise bounds of units' keys, `[heads, units, 2, head_dim]`: all maxima, then all minima. Bounds of 16-bit keys
/// are exact in 16 bits, so `type` is the keys' own; those of blocks are rounded to f16.
struct bounds_table {
  std::byte* data = nullptr;
  element_type type = element_type::f16;
  std::int64_t heads = 0;
  std::int64_t units = 0;  ///< capacity; sets the head stride
  std::int64_t head_dim = 0;

  constexpr std::int64_t bytes() const noexcept { return heads * units * 2 * head_dim * size_of(type); }
  constexpr bounds_table of(head_range few) const noexcept {
    bounds_table result = *this;
    result.data = unit(few.first, 0);
    result.heads = few.count;
    return result;
  }
  constexpr std::byte* unit(std::int64_t head, std::int64_t u) const noexcept {
    return data + (head * units + u) * 2 * head_dim * size_of(type);
  }
};

/// Mean of each unit's rows, all heads side by side: head h of unit u goes to means(u, column + h * head_dim ...).
/// A unit whose first token is in the range begins afresh; a unit that is open at `first` is continued from its count.
/// Keys that are `rotated` are rotated back first. O(tokens x heads x head_dim); fp32; any order of calls that covers the same
/// tokens agrees within 1e-5 relative.
template <class Memory, class Exec>
void pool_mean(basic_rows<Memory> const& keys, pooling const& what, table<float> means, std::int64_t column, Exec& exec) {
  exec.pool_mean(keys, what, means, column);
}

/// Minimum and maximum of each unit's rows by channel, as pool_mean in all else. Exact, and always finite: infinities count
/// as the type's largest values, NaN elements are passed over; a channel with nothing else has its largest value as minimum
/// and its lowest as maximum, and so scores below any other.
template <class Memory, class Exec>
void pool_bounds(basic_rows<Memory> const& keys, pooling const& what, bounds_table const& bounds, Exec& exec) {
  exec.pool_bounds(keys, what, bounds);
}

/// Mean -/+ one standard deviation of each unit's rows by channel, in place of bounds: `moments`, `[heads, units, 2, head_dim]`
/// floats with the bounds' capacity, keeps each unit's means, then its sums of squared differences. As pool_mean in all else; a
/// NaN makes its unit's bounds NaN.
template <class Memory, class Exec>
void pool_mean_deviation(basic_rows<Memory> const& keys, pooling const& what, float* moments, bounds_table const& bounds,
                         Exec& exec) {
  exec.pool_mean_deviation(keys, what, moments, bounds);
}

}  // namespace kvpolicy
