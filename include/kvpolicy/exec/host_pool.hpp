// The pools of host_exec, written like their definitions.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "kvpolicy/primitive/pool.hpp"

namespace kvpolicy::host {

/// See primitive/pool.hpp.
/// @param keys, what, means, column  as there
/// @param row  scratch, `[head_dim]`
inline void pool_mean(rows const& keys, pooling const& what, table<float> means, std::int64_t column, std::span<float> row) {
  for (std::int64_t t = what.first; t < what.last; ++t) {
    std::int64_t const unit = (t - what.origin) / what.unit_size;
    auto const already = static_cast<float>((t - what.origin) % what.unit_size);
    for (std::int64_t h = 0; h < keys.heads; ++h) {
      keys.load({h}, {t}, row);
      if (what.rotated.angles != nullptr) what.rotated.undo(keys.at({h}, {t}).value, row.data());
      float* const mean = means.row(unit) + column + h * keys.head_dim;
      for (std::int64_t i = 0; i < keys.head_dim; ++i) {
        float const value = row[static_cast<std::size_t>(i)];
        mean[i] = already == 0 ? value : mean[i] + (value - mean[i]) / (already + 1);
      }
    }
  }
}

/// See primitive/pool.hpp.
/// @param keys, what, bounds  as there
/// @param row  scratch, `[head_dim]`
inline void pool_bounds(rows const& keys, pooling const& what, bounds_table const& bounds, std::span<float> row) {
  float const most = largest(bounds.type);
  for (std::int64_t h = 0; h < keys.heads; ++h) {
    for (std::int64_t t = what.first; t < what.last; ++t) {
      keys.load({h}, {t}, row);
      std::byte* const unit = bounds.unit(h, t / what.unit_size);
      bool const fresh = t % what.unit_size == 0;
      for (std::int64_t i = 0; i < keys.head_dim; ++i) {
        float const value = std::clamp(row[static_cast<std::size_t>(i)], -most, most);  // a NaN stays one
        float const high = fresh ? -most : element_at(unit, i, bounds.type);
        float const low = fresh ? most : element_at(unit, keys.head_dim + i, bounds.type);
        put_element(unit, i, bounds.type, value > high ? value : high);
        put_element(unit, keys.head_dim + i, bounds.type, value < low ? value : low);
      }
    }
  }
}

/// See primitive/pool.hpp.
/// @param keys, what, moments, bounds  as there
/// @param row  scratch, `[head_dim]`
inline void pool_mean_deviation(rows const& keys, pooling const& what, float* moments, bounds_table const& bounds,
                                std::span<float> row) {
  float const most = largest(bounds.type);
  for (std::int64_t h = 0; h < keys.heads; ++h) {
    for (std::int64_t t = what.first; t < what.last; ++t) {
      keys.load({h}, {t}, row);
      std::int64_t const unit = (t - what.origin) / what.unit_size;
      auto const count = static_cast<float>((t - what.origin) % what.unit_size + 1);
      float* const mean = moments + (h * bounds.units + unit) * 2 * keys.head_dim;
      float* const squares = mean + keys.head_dim;
      for (std::int64_t i = 0; i < keys.head_dim; ++i) {
        float const value = row[static_cast<std::size_t>(i)];
        float const before = count == 1 ? value : mean[i];
        mean[i] = before + (value - before) / count;
        squares[i] = (count == 1 ? 0 : squares[i]) + (value - before) * (value - mean[i]);
        float const deviation = std::sqrt(squares[i] / count);
        put_element(bounds.unit(h, unit), i, bounds.type, std::clamp(mean[i] + deviation, -most, most));
        put_element(bounds.unit(h, unit), keys.head_dim + i, bounds.type, std::clamp(mean[i] - deviation, -most, most));
      }
    }
  }
}

}  // namespace kvpolicy::host
