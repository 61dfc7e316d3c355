// HeteroCache once more, from its paper's sections 3 and 4 and Algorithm 1 in the readings of methods.md.
#pragma once

#include <map>
#include <optional>

#include "kvpolicy/presets/heterocache.hpp"
#include "methods/naive_choice.hpp"

namespace kvpolicy_test::methods {

/// Greedy star clustering of one layer, on sets of heads.
inline std::vector<head_profile> naive_roles(std::vector<float> const& stability, std::vector<float> const& overlaps,
                                             float stable, float similar) {
  std::int64_t const heads = size_of(stability);
  std::vector<head_profile> made(stability.size());
  ints unassigned = range(0, heads);
  auto const neighbours = [&](std::int64_t h) {
    ints found;
    for (std::int64_t const other : unassigned) {
      if (other != h && at(overlaps, h * heads + other) >= similar) found.push_back(other);
    }
    return found;
  };
  while (true) {
    ints star;
    std::int64_t centre = -1;
    for (std::int64_t const h : unassigned) {
      if (neighbours(h).size() > star.size()) {
        star = neighbours(h);
        centre = h;
      }
    }
    if (centre < 0) break;
    at(made, centre).role = head_role::pivot;
    for (std::int64_t const s : star) at(made, s) = {.role = head_role::satellite, .pivot = narrow(centre)};
    unassigned = without(without(unassigned, star), {centre});
  }
  for (std::int64_t const h : unassigned)
    at(made, h).role = at(stability, h) >= stable ? head_role::anchor : head_role::shifting;
  for (std::int64_t h = 0; h < heads; ++h) at(made, h).stability = at(stability, h);
  return made;
}

inline double naive_median(reals values) {
  std::sort(values.begin(), values.end());
  std::size_t const n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

inline std::int64_t common(ints const& a, ints const& b) { return size_of(a) - size_of(without(a, b)); }

/// What eqs. 7 and 8 give to every head of a prompt of L tokens.
struct naive_budget {
  std::vector<bool> whole;
  std::int64_t total = 0;       ///< floor(N_comp * L_base)
  std::int64_t base = 0;        ///< floor(L_base): whole tokens of a set
  std::int64_t compressed = 0;  ///< N_comp
  reals lengths;                ///< before they are made whole numbers; of compressed heads
  bool refused = false;         ///< whole heads leave nothing
};

inline double weight_of(head_profile const& head, float floor) {
  return 1.0 / static_cast<double>(std::max(head.stability, floor));
}

/// floor(rho N L - N_full L), rho N L being the budget of a head times N.
inline naive_budget naive_lengths(std::vector<head_profile> const& heads, std::int64_t tokens, std::optional<double> ratio,
                                  std::int64_t L, double full_share, double floor, std::int64_t least) {
  naive_budget made;
  std::int64_t const N = size_of(heads);
  std::int64_t mean =
      ratio ? std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(L) * (1 - *ratio))) : std::min(tokens, L);
  // Pivots are more useful than volatile heads, and of the same role the less stable are; so many as the share allows are
  // whole.
  ints wanted;
  for (std::int64_t h = 0; h < N; ++h) {
    if (at(heads, h).role == head_role::pivot || at(heads, h).role == head_role::shifting) wanted.push_back(h);
  }
  std::stable_sort(wanted.begin(), wanted.end(), [&](std::int64_t a, std::int64_t b) {
    bool const pivot_a = at(heads, a).role == head_role::pivot;
    bool const pivot_b = at(heads, b).role == head_role::pivot;
    return pivot_a != pivot_b ? pivot_a : at(heads, a).stability < at(heads, b).stability;
  });
  if (full_share < 1) {
    auto const most = static_cast<std::int64_t>(full_share * static_cast<double>(mean * N) / static_cast<double>(L));
    wanted.resize(static_cast<std::size_t>(std::min(most, size_of(wanted))));
  }
  made.whole = std::vector<bool>(heads.size(), false);
  for (std::int64_t const h : wanted) made.whole[static_cast<std::size_t>(h)] = true;
  made.compressed = N - size_of(wanted);
  made.base = L;
  if (made.compressed == 0) return made;
  made.total = (ratio ? static_cast<std::int64_t>(static_cast<double>(N * L) * (1 - *ratio)) : mean * N) - size_of(wanted) * L;
  made.refused = made.total <= 0;
  if (made.refused) return made;
  made.base = made.total / made.compressed;
  // Water filling: one level c, every head clamp(c w, least, L), the sum the total. Bisection.
  double const low = static_cast<double>(std::min(least, L));
  double const high = static_cast<double>(L);
  auto const fill = [&](double c) {
    made.lengths.clear();
    double sum = 0;
    for (std::int64_t h = 0; h < N; ++h) {
      double const share = std::clamp(c * weight_of(at(heads, h), static_cast<float>(floor)), low, high);
      made.lengths.push_back(share);
      if (!made.whole[static_cast<std::size_t>(h)]) sum += share;
    }
    return sum;
  };
  double below = 0;
  double above = 2 * high;
  for (int i = 0; i < 200; ++i) {
    double const c = (below + above) / 2;
    (fill(c) < static_cast<double>(made.total) ? below : above) = c;
  }
  return made;
}

/// Attention of the query at token `from` over the prompt's keys, of which the first `of` tokens count: averaged over `width`
/// neighbours with zeros beyond both ends, of the group's mean or its largest.
inline reals pooled_attention(world const& w, std::int64_t l, std::int64_t h, std::int64_t from, std::int64_t prompt,
                              std::int64_t of, std::int64_t width, bool largest) {
  reals attention = w.group_attention(l, from, h, range(0, prompt));
  if (largest) {
    attention = w.attention(l, from, h * w.group(), range(0, prompt));
    for (std::int64_t g = 1; g < w.group(); ++g) {
      reals const one = w.attention(l, from, h * w.group() + g, range(0, prompt));
      for (std::size_t i = 0; i < one.size(); ++i) attention[i] = std::max(attention[i], one[i]);
    }
  }
  attention.resize(static_cast<std::size_t>(of));
  reals pooled;
  for (std::int64_t t = 0; t < of; ++t) {
    double sum = 0;
    for (std::int64_t o = t - width / 2; o <= t + width / 2; ++o) sum += o >= 0 && o < of ? at(attention, o) : 0;
    pooled.push_back(sum / static_cast<double>(width));
  }
  return pooled;
}

/// One head's watch over its attention (eqs. 9 and 10).
struct naive_drift {
  ints baseline;
  std::vector<ints> sets;
  bool close = false;  ///< fp32 might have taken other sets since the last look

  ints top(world const& w, std::int64_t l, std::int64_t h, std::int64_t from, std::int64_t prompt, std::int64_t base,
           std::int64_t width, bool largest) {
    reals const scores = pooled_attention(w, l, h, from, prompt, prompt, width, largest);
    close = close || close_call(scores, base, 1e-5 * largest_size(scores));
    return best(range(0, prompt), scores, base);
  }

  /// Whether the median overlap of the sets since the last look says that attention has moved.
  bool look(double tau, bool corrected, std::int64_t base, std::int64_t prompt) {
    reals overlaps;
    for (ints const& set : sets) {
      double o = static_cast<double>(common(set, baseline)) / static_cast<double>(base);
      double const chance = static_cast<double>(base) / static_cast<double>(prompt);
      if (corrected && chance < 1) o = (o - chance) / (1 - chance);
      overlaps.push_back(o);
    }
    bool const drifted = naive_median(overlaps) < tau;
    if (std::abs(naive_median(overlaps) - tau) < 1e-6 && corrected) close = true;
    if (drifted) baseline = sets.back();
    sets.clear();
    return drifted;
  }
};

}  // namespace kvpolicy_test::methods
