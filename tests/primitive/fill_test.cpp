#include "kvpolicy/primitive/fill.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "conformance/random_cache.hpp"
#include "primitive/inputs.hpp"

namespace kvpolicy_test {
namespace {

/// By sorting: higher first, NaN last, then the smaller index; each takes what is left.
std::vector<std::int32_t> by_sorting(std::vector<float> const& scores, std::vector<std::int32_t> const& sizes,
                                     std::int64_t budget) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (std::isnan(scores[a]) || std::isnan(scores[b])) return !std::isnan(scores[a]) && std::isnan(scores[b]);
    return scores[a] > scores[b];
  });
  std::vector<std::int32_t> taken(scores.size(), 0);
  for (std::size_t const u : order) {
    taken[u] = static_cast<std::int32_t>(std::clamp<std::int64_t>(budget, 0, sizes[u]));
    budget -= taken[u];
  }
  return taken;
}

TEST_CASE("fill takes whole units by falling score until the budget is spent, in 20000 random hostile cases", "[primitive]") {
  random_source random(55);
  std::int64_t wrong = 0;
  for (int round = 0; round < 20000; ++round) {
    std::int64_t const n = random.between(0, random.one_in(4) ? 90 : 12);
    std::int64_t const kind = random.between(0, 5);
    std::vector<float> scores = random.reals(n);
    std::vector<std::int32_t> sizes;
    std::int64_t total = 0;
    for (float& s : scores) {
      if (kind == 1) s = static_cast<float>(random.between(0, 2));
      if (kind == 2) s = random.pick(std::array{inf, -inf, 0.0f, -0.0f, nan, -nan});
      if (kind == 3) s = nan;
      if (kind == 4) s *= 1e-40f;
      if (kind == 5) s = -inf;
      std::int32_t const large = random.one_in(30) ? INT32_MAX : static_cast<std::int32_t>(random.between(1, 40));
      sizes.push_back(random.one_in(4) ? 0 : large);
      total += sizes.back();
    }
    std::int64_t const budget = random.pick(std::array<std::int64_t, 8>{0, 1, -5, total - 1, total, total + 1, INT64_MAX,
                                                                        random.between(0, std::min<std::int64_t>(total, 300))});
    std::vector<std::int32_t> taken(static_cast<std::size_t>(n), -7);
    fill(scores, sizes, budget, taken);
    if (taken != by_sorting(scores, sizes, budget)) ++wrong;
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("fill, worked by hand: the last unit is cut, ties go to the smaller index", "[primitive]") {
  std::array const scores{1.0f, 5.0f, nan, 5.0f, 3.0f};
  std::array const sizes{4, 3, 9, 6, 2};
  std::array<std::int32_t, 5> taken{};
  auto const filled = [&](std::int64_t budget) {
    fill(scores, sizes, budget, taken);
    return taken;
  };
  REQUIRE(filled(2) == std::array{0, 2, 0, 0, 0});
  REQUIRE(filled(3) == std::array{0, 3, 0, 0, 0});
  REQUIRE(filled(7) == std::array{0, 3, 0, 4, 0});
  REQUIRE(filled(10) == std::array{0, 3, 0, 6, 1});
  REQUIRE(filled(16) == std::array{4, 3, 1, 6, 2});
  REQUIRE(filled(100) == std::array{4, 3, 9, 6, 2});
}

}  // namespace
}  // namespace kvpolicy_test
