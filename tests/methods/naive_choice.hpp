// The order that every selection shares, and when a different choice is excused: near-ties, and nothing else.
#pragma once

#include <catch2/catch_test_macros.hpp>
#include <numeric>
#include <string>

#include "methods/naive_world.hpp"

namespace kvpolicy_test::methods {

/// Indices by falling score, ties to the smaller index.
inline ints ranked(reals const& scores) {
  ints order = range(0, size_of(scores));
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return at(scores, a) > at(scores, b); });
  return order;
}

/// The names of the k best scores, ascending.
inline ints best(ints const& names, reals const& scores, std::int64_t k) {
  ints made;
  for (std::int64_t const i : ranked(scores)) {
    if (size_of(made) >= k) break;
    made.push_back(at(names, i));
  }
  std::sort(made.begin(), made.end());
  return made;
}

inline double largest_size(reals const& scores) {
  double most = 0;
  for (double const s : scores) most = std::max(most, std::abs(s));
  return most;
}

/// Whether the k best could be others in fp32: two scores on either side of the cut that differ, by less than `slack`.
inline bool close_call(reals const& scores, std::int64_t k, double slack) {
  if (k <= 0 || k >= size_of(scores)) return false;
  ints const order = ranked(scores);
  double const gap = at(scores, at(order, k - 1)) - at(scores, at(order, k));
  return gap != 0 && gap < slack;
}

enum class verdict { same, excused, different };

/// Whether `got`, ascending, is the k best of these names. A name in another's place is excused if both scores lie within
/// `slack` of the k-th one and are not the same: equal scores have a rule.
inline verdict judge(ints const& got, ints const& names, reals const& scores, std::int64_t k, double slack) {
  ints const want = best(names, scores, k);
  if (got == want) return verdict::same;
  if (got.size() != want.size() || want.empty()) return verdict::different;
  reals swapped;
  double threshold = std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < size_of(names); ++i) {
    bool const is = std::binary_search(got.begin(), got.end(), at(names, i));
    bool const should = std::binary_search(want.begin(), want.end(), at(names, i));
    if (should) threshold = std::min(threshold, at(scores, i));
    if (is != should) swapped.push_back(at(scores, i));
  }
  if (swapped.size() != 2 * without(want, got).size()) return verdict::different;  // got has what is no candidate
  for (double const s : swapped) {
    if (std::abs(s - threshold) >= slack) return verdict::different;
  }
  auto const [low, high] = std::minmax_element(swapped.begin(), swapped.end());
  return *low == *high ? verdict::different : verdict::excused;
}

inline std::string text(ints const& list) {
  std::string made;
  for (std::int64_t const x : list) made += std::to_string(x) + " ";
  return made;
}

/// What a suite compared, and how much of that it excused.
struct tally {
  std::int64_t compared = 0;
  std::int64_t excused = 0;

  void add(verdict v) {
    ++compared;
    excused += v == verdict::excused ? 1 : 0;
  }
  /// Near-ties are rare where scores are real numbers; if they are not, something is being excused that should not be.
  void require(std::int64_t least = 5000) const {
    WARN(compared << " cases compared, " << excused << " near-ties excused");
    REQUIRE(compared - excused >= least);
    REQUIRE(excused * 100 <= compared);
  }
};

/// compare(world, random, round, tally) in so many worlds of small shapes.
template <class Compare>
void in_worlds(std::uint64_t seed, int rounds, std::int64_t most_tokens, std::int64_t layers, Compare compare) {
  random_source random(seed);
  tally cases;
  for (int round = 0; round < rounds; ++round) {
    world const w(small_shape(random, most_tokens, layers), random);
    compare(w, random, round, cases);
  }
  cases.require();
}

/// Whether the policy can be, for this shape.
template <class Policy>
bool allowed(Policy const& policy, cache_shape const& shape) {
  try {
    check(policy, shape);
    return true;
  } catch (invalid_value const&) {
    return false;
  }
}

}  // namespace kvpolicy_test::methods
