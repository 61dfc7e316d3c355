#include "kvpolicy/head_profile.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "kvpolicy/kvpolicy.hpp"
#include "methods/naive_heterocache.hpp"

namespace kvpolicy_test::methods {
namespace {

/// Overlaps on a grid of tenths, so that thresholds are met exactly and stars tie.
std::vector<float> random_overlaps(std::int64_t heads, bool symmetric, random_source& random) {
  std::vector<float> made(static_cast<std::size_t>(heads * heads));
  for (std::int64_t a = 0; a < heads; ++a) {
    for (std::int64_t b = 0; b < heads; ++b) at(made, a * heads + b) = static_cast<float>(random.between(0, 8)) / 8;
    for (std::int64_t b = 0; symmetric && b < a; ++b) at(made, a * heads + b) = at(made, b * heads + a);
  }
  return made;
}

TEST_CASE("roles are those of a greedy star clustering", "[methods]") {
  random_source random(1401);
  for (int round = 0; round < 6000; ++round) {
    std::int64_t const heads = random.between(1, 12);
    std::vector<float> const overlaps = random_overlaps(heads, true, random);
    std::vector<float> stability;
    for (std::int64_t h = 0; h < heads; ++h) stability.push_back(static_cast<float>(random.between(0, 8)) / 8);
    role_thresholds const tau{static_cast<float>(random.between(1, 8)) / 8, static_cast<float>(random.between(3, 9)) / 8};
    INFO("round " << round << " heads " << heads);
    REQUIRE(assign_roles(stability, overlaps, tau) == naive_roles(stability, overlaps, tau.stable, tau.similar));
  }
}

// Similar pairs: 0-1, 1-2, 2-3, 3-4. Heads 1, 2 and 3 have two neighbours each: 1 is the pivot of 0 and 2. Then 3-4 is left: 3
// is the pivot of 4. Head 5 is like none: .5 is stable, .4 is not.
TEST_CASE("roles, worked by hand", "[methods]") {
  std::vector<float> overlaps(36, .1f);
  for (std::size_t const a : {0u, 1u, 2u, 3u}) overlaps[a * 6 + a + 1] = overlaps[(a + 1) * 6 + a] = .5f;
  for (float const last : {.5f, .4f}) {
    std::vector<float> const stability{.9f, .8f, .7f, .6f, .5f, last};
    std::vector<head_profile> const made = assign_roles(stability, overlaps);
    REQUIRE(at(made, 0) == head_profile{head_role::satellite, 1, .9f});
    REQUIRE(at(made, 1) == head_profile{head_role::pivot, -1, .8f});
    REQUIRE(at(made, 2) == head_profile{head_role::satellite, 1, .7f});
    REQUIRE(at(made, 3) == head_profile{head_role::pivot, -1, .6f});
    REQUIRE(at(made, 4) == head_profile{head_role::satellite, 3, .5f});
    REQUIRE(at(made, 5) == head_profile{last >= .5f ? head_role::anchor : head_role::shifting, -1, last});
  }
}

std::vector<std::int32_t> random_set(std::int64_t tokens, random_source& random) {
  std::vector<std::int32_t> made;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (random.one_in(3)) made.push_back(narrow(t));
  }
  return made;
}

double naive_overlap(std::vector<std::int32_t> const& a, std::vector<std::int32_t> const& b) {
  ints const x(a.begin(), a.end());
  ints const y(b.begin(), b.end());
  std::size_t const smaller = std::min(x.size(), y.size());
  return smaller == 0 ? 0 : static_cast<double>(common(x, y)) / static_cast<double>(smaller);
}

TEST_CASE("a calibration's stability and similarity are medians over steps, means over prompts", "[methods]") {
  random_source random(1402);
  for (int round = 0; round < 5000; ++round) {
    std::int64_t const layers = random.between(1, 2);
    std::int64_t const heads = random.between(1, 4);
    std::int64_t const prompts = random.between(1, 2);
    head_calibration calibration(layers, heads);
    reals stability = filled(layers * heads, 0.0);
    reals similarity = filled(layers * heads * heads, 0.0);
    for (std::int64_t p = 0; p < prompts; ++p) {
      std::vector<std::vector<std::int32_t>> first;
      for (std::int64_t i = 0; i < layers * heads; ++i) first.push_back(random_set(14, random));
      calibration.begin(first);
      std::vector<reals> own(first.size());
      std::vector<reals> pairs(first.size() * static_cast<std::size_t>(heads));
      std::int64_t const steps = random.between(1, 6);
      for (std::int64_t s = 0; s < steps; ++s) {
        for (std::int64_t l = 0; l < layers; ++l) {
          std::vector<std::vector<std::int32_t>> sets;
          for (std::int64_t h = 0; h < heads; ++h) sets.push_back(random_set(14, random));
          calibration.add(l, sets);
          for (std::int64_t a = 0; a < heads; ++a) {
            at(own, l * heads + a).push_back(naive_overlap(at(sets, a), at(first, l * heads + a)));
            for (std::int64_t b = 0; b < heads; ++b) {
              at(pairs, (l * heads + a) * heads + b).push_back(naive_overlap(at(sets, a), at(sets, b)));
            }
          }
        }
      }
      calibration.end();
      for (std::size_t i = 0; i < own.size(); ++i) stability[i] += naive_median(own[i]) / static_cast<double>(prompts);
      for (std::size_t i = 0; i < pairs.size(); ++i) similarity[i] += naive_median(pairs[i]) / static_cast<double>(prompts);
    }
    std::vector<head_profile> const made = calibration.profile();
    bool close = false;  // a mean of two medians may miss a threshold by a rounding
    for (double const s : stability) close = close || (s != .5 && std::abs(s - .5) < 1e-6);
    for (double const s : similarity) close = close || (s != .5 && std::abs(s - .5) < 1e-6);
    if (close) continue;
    for (std::int64_t l = 0; l < layers; ++l) {
      std::vector<float> const s(stability.begin() + l * heads, stability.begin() + (l + 1) * heads);
      std::vector<float> const o(similarity.begin() + l * heads * heads, similarity.begin() + (l + 1) * heads * heads);
      std::vector<head_profile> const want = naive_roles(s, o, .5f, .5f);
      for (std::int64_t h = 0; h < heads; ++h) {
        INFO("round " << round << " layer " << l << " head " << h);
        REQUIRE(at(made, l * heads + h).role == at(want, h).role);
        REQUIRE(at(made, l * heads + h).pivot == at(want, h).pivot);
        REQUIRE(std::abs(at(made, l * heads + h).stability - at(want, h).stability) < 1e-6f);
      }
    }
  }
}

TEST_CASE("lengths by role spend the budget exactly, within bounds, more for the less stable", "[methods]") {
  random_source random(1403);
  int exact = 0;
  int refused = 0;
  for (int round = 0; round < 12000; ++round) {
    std::int64_t const N = random.between(1, 12);
    std::vector<head_profile> heads;
    for (std::int64_t h = 0; h < N; ++h) {
      auto const role = static_cast<head_role>(random.between(0, 3));
      heads.push_back({.role = role, .pivot = role == head_role::satellite ? 0 : -1, .stability = std::abs(random.real())});
      if (random.one_in(3)) heads.back().stability = .5f;  // ties
    }
    std::int64_t const L = random.between(1, 400);
    budgets::by_head_role budget{.heads = heads,
                                 .count = narrow(random.between(1, 400)),
                                 .floor = .05f,
                                 .least = narrow(random.between(1, 24)),
                                 .full_share = random.one_in(2) ? 1 : .5};
    if (random.one_in(3)) budget.ratio = static_cast<double>(random.between(0, 15)) / 16;
    naive_budget const want =
        naive_lengths(heads, budget.count, budget.ratio, L, budget.full_share, budget.floor, budget.least);
    std::vector<std::int64_t> got(heads.size());
    INFO("round " << round << " heads " << N << " prompt " << L << " count " << budget.count << " ratio "
                  << budget.ratio.value_or(-1) << " share " << budget.full_share << " least " << budget.least << " total "
                  << want.total);
    if (want.refused) {
      REQUIRE_THROWS_AS(budget.lengths(L, got), invalid_value);
      ++refused;
      continue;
    }
    budget.lengths(L, got);
    REQUIRE(budget.base(L) == want.base);
    std::int64_t const low = std::min<std::int64_t>(budget.least, L);
    std::int64_t sum = 0;
    for (std::int64_t h = 0; h < N; ++h) {
      INFO("head " << h << " length " << at(got, h));
      bool const whole = want.whole[static_cast<std::size_t>(h)];
      REQUIRE(budget.whole(static_cast<std::size_t>(h), L) == whole);
      if (whole) {
        REQUIRE(at(got, h) == L);
        continue;
      }
      REQUIRE((at(got, h) >= low && at(got, h) <= L));
      // Within one token of the share that is not rounded.
      REQUIRE(std::abs(static_cast<double>(at(got, h)) - at(want.lengths, h)) < 1 + 1e-6);
      sum += at(got, h);
      for (std::int64_t other = 0; other < N; ++other) {
        bool const steadier = weight_of(at(heads, other), budget.floor) < weight_of(at(heads, h), budget.floor);
        if (want.whole[static_cast<std::size_t>(other)] || !steadier) continue;
        REQUIRE(at(got, h) >= at(got, other));
      }
    }
    if (want.compressed == 0) continue;
    REQUIRE(sum == std::clamp(want.total, low * want.compressed, L * want.compressed));
    exact += sum == want.total ? 1 : 0;
  }
  WARN(exact << " budgets spent exactly, " << refused << " refused");
  REQUIRE(exact >= 5000);
  REQUIRE(refused >= 500);
}

// One full head (a pivot) and three others, 40 tokens, 25 a head in the mean: 4 x 25 - 40 = 60 for three, L_base 20. Weights
// 1/1, 1/.5, 1/.25: 1, 2, 4, of 7: 8.57, 17.14, 34.29. At most 40, at least 10: the first is raised to 10, the others share 50
// by 2 to 4: 16.67 and 33.33; the one token left goes to the larger remainder.
TEST_CASE("lengths by role, worked by hand", "[methods]") {
  std::vector<head_profile> const heads{{head_role::pivot, -1, .1f},
                                        {head_role::satellite, 0, 1.f},
                                        {head_role::satellite, 0, .5f},
                                        {head_role::anchor, -1, .25f}};
  budgets::by_head_role const budget{.heads = heads, .count = 25, .least = 10, .full_share = 1};
  std::vector<std::int64_t> lengths(4);
  budget.lengths(40, lengths);
  REQUIRE(budget.base(40) == 20);
  REQUIRE(lengths == std::vector<std::int64_t>{40, 10, 17, 33});
  // 10 a head: 40 for the pivot, nothing for the others.
  budgets::by_head_role const spent{.heads = heads, .count = 10, .least = 1, .full_share = 1};
  REQUIRE_THROWS_AS(spent.lengths(40, lengths), invalid_value);
}

TEST_CASE("a file of another model's heads is refused by its shape, though it has as many", "[methods]") {
  std::vector<float> const retrieval(256, .5f);
  std::vector<head_profile> const roles(256);
  std::vector<query_moment> const moments(256 * 4);
  cache_shape const model{.layers = 16, .q_heads = 16, .kv_heads = 16, .head_dim = 8, .max_tokens = 1024};
  auto const with = [&](std::int64_t heads) {
    check(presets::duoattention{.retrieval = {retrieval, heads}}, model);
    check(presets::heterocache{.heads = {roles, heads}}, model);
    static_cast<void>(start(presets::triattention{.moments = {moments, heads}, .tokens = 300}, model));
  };
  REQUIRE_NOTHROW(with(16));
  REQUIRE_NOTHROW(with(0));  // not said
  for (std::int64_t const heads : {4, 8, 32}) {
    using Catch::Matchers::ContainsSubstring;
    std::string const theirs = std::to_string(256 / heads) + " layers x " + std::to_string(heads) + " heads";
    REQUIRE_THROWS_WITH((check(presets::duoattention{.retrieval = {retrieval, heads}}, model)),
                        ContainsSubstring(theirs) && ContainsSubstring("a model of 16 x 16"));
    REQUIRE_THROWS_WITH((check(presets::heterocache{.heads = {roles, heads}}, model)), ContainsSubstring(theirs));
    REQUIRE_THROWS_WITH(start(presets::triattention{.moments = {moments, heads}, .tokens = 300}, model),
                        ContainsSubstring(theirs));
  }
}

}  // namespace
}  // namespace kvpolicy_test::methods
