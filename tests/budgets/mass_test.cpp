#include "kvpolicy/budgets/mass.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/random_cache.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

cache_shape const shape{1, 1, 1, 16, 1000, element_type::f32};

std::vector<std::int32_t> allocated(budgets::mass const& part, std::vector<std::vector<float>> const& rows,
                                    std::int64_t unit_size = 1, std::int64_t forced = 0) {
  std::vector<float> scores;
  for (auto const& row : rows) scores.insert(scores.end(), row.begin(), row.end());
  auto const columns = static_cast<std::int64_t>(rows.front().size());
  std::vector<std::int32_t> units(rows.size(), -1);
  host_exec exec;
  part.allocate({.shape = shape, .tokens = 1000, .prompt = 1000, .forced = forced, .unit_size = unit_size},
                table<float const>{scores.data(), std::ssize(rows), columns, columns}, units, exec);
  return units;
}

// Sorted, summed, counted: as many as bring the sum to 1 - eps of all, within the bounds.
TEST_CASE("a budget by mass takes the fewest units that hold all but eps", "[budget]") {
  random_source random(71);
  int bounded = 0;
  for (int round = 0; round < 3000; ++round) {
    bool const logits = random.one_in(2);
    std::int64_t const unit = random.between(1, 9);
    std::int64_t const forced = random.between(0, 30);
    budgets::mass part{.eps = static_cast<double>(random.between(0, 19)) / 20,
                       .of_scores = logits ? budgets::mass::kind::logits : budgets::mass::kind::weights,
                       .least = static_cast<std::int32_t>(random.between(1, 60))};
    part.most = part.least + static_cast<std::int32_t>(random.between(0, 200));
    std::vector<float> scores = random.reals(random.between(1, 80), 20);
    for (float& s : scores) {
      if (!logits) s = std::abs(s);
      if (random.one_in(20)) s = std::numeric_limits<float>::quiet_NaN();
      if (random.one_in(9)) s = 3;  // ties
    }
    std::vector<double> weights;
    for (float const s : scores) {
      double const w = logits ? std::exp(static_cast<double>(s) / 4) : static_cast<double>(s);
      weights.push_back(std::isnan(s) ? 0 : w);
    }
    std::ranges::sort(weights, std::greater<>{});
    double const all = std::accumulate(weights.begin(), weights.end(), 0.);
    std::int64_t count = 0;
    bool close = false;
    for (double sum = 0; count < std::ssize(weights) && sum < (1 - part.eps) * all; ++count) {
      sum += weights[static_cast<std::size_t>(count)];
      close = close || std::abs(sum - (1 - part.eps) * all) < 1e-5 * all;
    }
    if (close) continue;
    auto const bound = [&](std::int64_t tokens) {
      return std::clamp<std::int64_t>((tokens - forced) / unit, 0, std::ssize(scores));
    };
    std::int64_t const want = std::clamp(count, bound(part.least), bound(part.most));
    bounded += want != count ? 1 : 0;
    INFO("round " << round << " logits " << logits << " eps " << part.eps << " units " << scores.size());
    REQUIRE(allocated(part, {scores}, unit, forced) == std::vector<std::int32_t>{static_cast<std::int32_t>(want)});
  }
  REQUIRE(bounded > 300);
  REQUIRE(bounded < 2500);
}

TEST_CASE("of a budget by mass every list gets its own number", "[budget]") {
  budgets::mass const part{.eps = .1, .least = 1};
  REQUIRE(allocated(part, {{.97f, .01f, .01f, .01f}, {.25f, .25f, .25f, .25f}, {0, 0, 0, 0}}) ==
          std::vector<std::int32_t>{1, 4, 1});
  float const infinite = std::numeric_limits<float>::infinity();
  budgets::mass logits = part;
  logits.of_scores = budgets::mass::kind::logits;
  REQUIRE(allocated(logits, {{infinite, 1, infinite}, {-infinite, -infinite, -infinite}}) == std::vector<std::int32_t>{2, 1});
}

TEST_CASE("a budget by mass refuses what can't be", "[budget]") {
  for (double const eps : {-.1, 1., 2.}) REQUIRE_THROWS_AS(budgets::mass{.eps = eps}.check(shape), invalid_value);
  REQUIRE_THROWS_AS((budgets::mass{.least = 0}.check(shape)), invalid_value);
  REQUIRE_THROWS_AS((budgets::mass{.least = 9, .most = 8}.check(shape)), invalid_value);
  REQUIRE_THROWS_AS(allocated({}, {std::vector<float>(budgets::mass::max_units + 1)}), invalid_value);
}

// Quest's pages by mass: a query that looks at one page reads few, one that looks everywhere many.
TEST_CASE("pages by mass are as many as the query looks at", "[budget]") {
  cache_shape const of{1, 1, 1, 2, 400, element_type::f32};
  random_source random(72);
  random_cache cache(of, layout::head_major, 400, random);
  for (std::int64_t t = 0; t < 400; ++t) {
    cache.set_key(0, 0, t, 0, t / 8 == 20 ? 30.f : 0.f);
    cache.set_key(0, 0, t, 1, 0);
  }
  policy const by_mass{keep_all{},
                       keep{segments::pages{8}, pools::bounds{}, scorers::upper_bound{},
                            budgets::mass{.eps = .05, .of_scores = budgets::mass::kind::logits, .least = 16, .most = 360},
                            selectors::top{}, windows::pages{.size = 8}, triggers::every_step{}}};
  host_exec exec;
  auto state = start(by_mass, of);
  state.prefill(own_view{&cache, 380}, {0}, {}, exec);
  auto const read = [&](std::int64_t n, float q) {
    std::vector<float> const query{q, 0};
    return token_count(state.choose(own_view{&cache, n}, {0}, {query.data(), 1, 2, 1.f}, exec).of({0}));
  };
  REQUIRE(read(381, 1) <= 32);
  REQUIRE(read(382, 0) >= 340);
}

}  // namespace
}  // namespace kvpolicy_test
