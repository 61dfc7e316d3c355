// Whole tokens, shared in proportion to weights, within bounds (water filling).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace kvpolicy {

/// What is shared out, and the bounds of a share.
struct shared_tokens {
  std::int64_t all = 0;
  std::int64_t least = 0;
  std::int64_t most = 0;
};

/// Gives each entry of `out` that is below 0 its share, in proportion to weight(entry).
/// Shares sum to what is shared, unless the bounds force another sum. Entries that are 0 or more stay.
/// @param what  the tokens and bounds
/// @param weight  called with an entry's index; above 0
/// @param out  receives the shares
/// @param lost  scratch, as long as `out` or longer
template <class Weight>
void share_out(shared_tokens what, Weight const& weight, std::span<std::int64_t> out, std::span<float> lost) {
  auto const open_weights = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] < 0 ? weight(i) : 0;
    return sum;
  };
  auto const low = static_cast<double>(what.least);
  auto const high = static_cast<double>(what.most);
  std::int64_t left = what.all;
  // A share outside its bounds is set to the bound, and the others share the rest, until all lie within.
  for (bool settled = false; !settled;) {
    settled = true;
    double const weights = open_weights();
    if (weights == 0) return;
    double excess = 0;  // by how much clamping would change the sum: the side that weighs more is settled first
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] >= 0) continue;
      double const share = static_cast<double>(left) * weight(i) / weights;
      excess += std::clamp(share, low, high) - share;
    }
    std::int64_t taken = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] >= 0) continue;
      double const share = static_cast<double>(left) * weight(i) / weights;
      if (share < low && excess >= 0) out[i] = what.least;
      else if (share > high && excess <= 0) out[i] = what.most;
      else continue;
      taken += out[i];
      settled = false;
    }
    left -= taken;
  }
  // Whole tokens: each entry gets the floor of its share. Then those that lost most get one more, lower entries first.
  double const weights = open_weights();
  std::int64_t rest = std::max<std::int64_t>(left, 0);
  std::int64_t const shared = rest;
  for (std::size_t i = 0; i < out.size(); ++i) {
    lost[i] = -1;
    if (out[i] >= 0) continue;
    double const share = static_cast<double>(shared) * weight(i) / weights;
    out[i] = static_cast<std::int64_t>(share);
    lost[i] = static_cast<float>(share - std::floor(share));
    rest -= out[i];
  }
  for (; rest > 0; --rest) {
    auto const most = std::ranges::max_element(lost.first(out.size()));
    if (*most < 0) return;
    ++out[static_cast<std::size_t>(most - lost.begin())];
    *most = 0;
  }
}

}  // namespace kvpolicy
