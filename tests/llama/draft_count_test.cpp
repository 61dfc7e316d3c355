#include "draft_count.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <limits>
#include <utility>

#include "conformance/random_cache.hpp"

namespace kvpolicy_test {
namespace {

/// What an engine's rounds cost, in milliseconds, and how often a draft behind taken ones is taken.
struct engine_costs {
  double draft;
  double verify[8];  ///< of 0 to 7 drafts
  double taken;

  /// Tokens of a round of g drafts, and its milliseconds, on average.
  double ms_per_token(int g) const {
    double tokens = 1;
    for (double p = taken, i = 0; i < g; ++i, p *= taken) tokens += p;
    return (g * draft + verify[g]) / tokens;
  }
  double best() const {
    double least = std::numeric_limits<double>::infinity();
    for (int g = 0; g < 8; ++g) least = std::min(least, ms_per_token(g));
    return least;
  }
};

/// Milliseconds a token of rounds that the count decides on.
double decided(engine_costs const& costs, int rounds, random_source& random) {
  llama::draft_count count;
  double ms = 0;
  double tokens = 0;
  std::array<bool, 8> first{};
  first.fill(true);  // batches of a size that an engine has not seen yet take longer
  auto const noisy = [&](double of) { return of * (random.one_in(20) ? 2 : 1 + .03 * std::abs(random.real())); };
  for (int round = 0; round < rounds; ++round) {
    auto const drafts = static_cast<std::size_t>(count.next(7));
    REQUIRE(drafts <= 7);
    for (std::size_t d = 0; d < drafts; ++d) {
      double const took = noisy(costs.draft);
      count.drafted(static_cast<std::int64_t>(d), took / 1e3);
      ms += took;
    }
    double const took = noisy(costs.verify[drafts]);
    count.verified(drafts, took / 1e3 * (std::exchange(first[drafts], false) ? 3 : 1));
    ms += took;
    std::size_t stay = 0;
    while (stay < drafts && random.between(0, 999) < static_cast<std::int64_t>(1000 * costs.taken)) ++stay;
    if (drafts > 0) count.judged(drafts, stay);
    tokens += 1 + static_cast<double>(stay);
  }
  return ms / tokens;
}

TEST_CASE("the number of drafts is nearly the best one, whatever rounds cost") {
  random_source random(81);
  // As measured: SmolLM2 at 7,000 tokens in Q4_1 and Q4_0, at 2,250 in Q4_0, Qwen2.5-0.5B at 14,400 in Q4_0; and a GPU's.
  for (engine_costs const& costs :
       {engine_costs{6.5, {13.5, 22, 27, 31, 34, 38, 42, 46}, .93}, engine_costs{5.3, {11, 16, 18, 18.5, 22, 24, 26, 27}, .93},
        engine_costs{4.7, {6.4, 9, 11, 11.3, 14, 16, 18, 18}, .92}, engine_costs{9.7, {17.3, 27, 32, 34, 45, 52, 58, 60}, .5},
        engine_costs{3, {20, 20, 21, 21, 22, 22, 23, 23}, .95}, engine_costs{3, {20, 20, 21, 21, 22, 22, 23, 23}, .05}}) {
    CAPTURE(costs.draft, costs.verify[0], costs.taken, costs.best());
    double const found = decided(costs, 4000, random);
    CAPTURE(found);
    double const noise = 1.07;  // that every number of drafts would have
    REQUIRE(found <= costs.best() * noise * 1.05);
    REQUIRE(decided(costs, 60, random) <= costs.verify[0] * noise * 1.2);
  }
}

// Seconds are made up: a draft takes .3 of a dense step, and verifying g drafts 1 + .1 g.
std::int64_t settled_count(double taken_share, double draft, double verify) {
  llama::draft_count count;
  double owed = 0;
  std::array<std::int64_t, most_step_tokens> seen{};
  for (int round = 0; round < 400; ++round) {
    std::int64_t const g = count.next(7);
    for (std::int64_t d = 0; d < g; ++d) count.drafted(d, draft);
    count.verified(static_cast<std::size_t>(g), 1 + verify * static_cast<double>(g));
    std::int64_t taken = 0;
    while (taken < g && (owed += taken_share) >= 1) owed -= 1, ++taken;
    if (g > 0) count.judged(static_cast<std::size_t>(g), static_cast<std::size_t>(taken));
    if (round >= 200) ++seen[static_cast<std::size_t>(g)];
  }
  return std::ranges::max_element(seen) - seen.begin();
}

TEST_CASE("as many drafts are made as pay, and none where none does") {
  CHECK(settled_count(.99, .3, .1) == 7);
  CHECK(settled_count(.5, .3, .1) <= 2);
  CHECK(settled_count(.0, .3, .1) == 0);
  CHECK(settled_count(.99, 1, .1) == 0);
  CHECK(settled_count(.99, .3, 1) == 0);
}

TEST_CASE("nothing is drafted where there is no room") {
  llama::draft_count count;
  for (int round = 0; round < 200; ++round) {
    REQUIRE(count.next(0) == 0);
    count.verified(0, .01);
  }
}

}  // namespace
}  // namespace kvpolicy_test
