// What host_exec makes of a row of weights, and of logits, in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kvpolicy/primitive/entropy.hpp"
#include "kvpolicy/primitive/window_attention.hpp"

namespace kvpolicy::host {

/// Returns one value merged with its neighbours, by `how` and `width` of a smoothing (primitive/window_attention.hpp).
/// @param values  a row
/// @param at  index of the value
/// @param smooth  kind and width
/// @return the smoothed value
inline double smoothed(std::span<double const> values, std::int64_t at, smoothing smooth) {
  if (smooth.how == smoothing::kind::none) return values[static_cast<std::size_t>(at)];
  bool const average = smooth.how == smoothing::kind::average;
  double result = average ? 0 : -std::numeric_limits<double>::infinity();
  std::int64_t const first = std::max<std::int64_t>(0, at - smooth.width / 2);
  std::int64_t const last = std::min(static_cast<std::int64_t>(values.size()) - 1, at + smooth.width / 2);
  for (std::int64_t t = first; t <= last; ++t) {
    double const value = values[static_cast<std::size_t>(t)];
    if (average) result += value / static_cast<double>(smooth.width);
    else if (!(value <= result)) result = value;
  }
  return result;
}

/// See primitive/entropy.hpp.
/// @param logits  as there
/// @return as there
inline uncertainty entropy(std::span<float const> logits) {
  double const most = *std::ranges::max_element(logits);
  double total = 0;
  for (float const x : logits) total += std::exp(x - most);
  auto const surprise = [&](float x) { return std::log(total) - (x - most); };
  auto const mean_of = [&](auto f) {
    double mean = 0;
    for (float const x : logits) {
      double const p = std::exp(x - most) / total;
      if (p != 0) mean += p * f(surprise(x));
    }
    return mean;
  };
  double const entropy = mean_of([](double s) { return s; });
  double const varentropy = mean_of([&](double s) { return (s - entropy) * (s - entropy); });
  return {static_cast<float>(entropy), static_cast<float>(varentropy)};
}

}  // namespace kvpolicy::host
