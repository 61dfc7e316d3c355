// The primitives of host_exec that score the tokens of a list by their keys, written like their definitions.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "kvpolicy/exec/host_prompt.hpp"
#include "kvpolicy/primitive/kept_scores.hpp"

namespace kvpolicy::host {

/// See primitive/kept_scores.hpp.
/// @param keys, lists, alike, redundancy  as there
inline void key_redundancy(rows const& keys, std::span<range_list const> lists, float alike, table<float> redundancy) {
  for (std::int64_t h = 0; h < keys.heads; ++h) {
    std::vector<std::vector<float>> listed;
    for (token_range const& range : lists[lists.size() == 1 ? 0 : static_cast<std::size_t>(h)]) {
      for (std::int64_t t = range.begin; t < range.end; ++t) {
        keys.load({h}, {t}, listed.emplace_back(static_cast<std::size_t>(keys.head_dim)));
      }
    }
    std::size_t const count = listed.size();
    std::vector<double> sums(count);
    for (std::size_t j = 0; j < count; ++j) {
      std::vector<double> cosines(count);
      std::size_t last = count;
      for (std::size_t i = 0; i < count; ++i) {
        double const norms = std::sqrt(dot(listed[j], listed[j])) * std::sqrt(dot(listed[i], listed[i]));
        cosines[i] = i == j || norms == 0 ? 0 : dot(listed[j], listed[i]) / norms;
        if (cosines[i] > alike) last = i;
      }
      if (last < count) cosines[last] = 0;
      for (std::size_t i = 0; i < count; ++i) sums[i] += cosines[i];
    }
    for (std::size_t i = 0; i < count; ++i) {
      redundancy(h, static_cast<std::int64_t>(i)) = static_cast<float>(sums[i] / static_cast<double>(count));
    }
  }
}

/// See primitive/kept_scores.hpp.
/// @param keys, lists, queries, wanted  as there
inline void rotated_scores(rows const& keys, std::span<range_list const> lists, rotated_queries const& queries,
                           table<float> wanted) {
  std::int64_t const group = queries.mean.rows / keys.heads;
  std::int64_t const pairs = queries.spread.columns;
  std::vector<float> key(static_cast<std::size_t>(keys.head_dim));
  for (std::int64_t h = 0; h < keys.heads; ++h) {
    std::int64_t i = 0;
    for (token_range const& range : lists[lists.size() == 1 ? 0 : static_cast<std::size_t>(h)]) {
      for (std::int64_t t = range.begin; t < range.end; ++t, ++i) {
        keys.load({h}, {t}, key);
        for (std::int64_t q = h * group; q < (h + 1) * group; ++q) {
          double sum = dot(key, {queries.mean.row(q), key.size()});
          for (std::int64_t f = 0; f < pairs; ++f) {
            bool const halves = queries.pairing == rotation::pairing::halves;
            double const x = key[static_cast<std::size_t>(halves ? f : 2 * f)];
            double const y = key[static_cast<std::size_t>(halves ? f + pairs : 2 * f + 1)];
            sum += static_cast<double>(queries.spread(q, f)) * std::sqrt(x * x + y * y);
          }
          wanted(q, i) = static_cast<float>(sum);
        }
      }
    }
  }
}

}  // namespace kvpolicy::host
