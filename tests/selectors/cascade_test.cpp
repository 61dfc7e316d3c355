#include "kvpolicy/selectors/cascade.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "conformance/random_cache.hpp"
#include "kvpolicy/budgets/fractions.hpp"
#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/scorers/anchor_affinity.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/pages.hpp"

namespace kvpolicy {
namespace {

/// Pages of one token and one channel, two to a chunk, two chunks to a grid; the anchor is the last page.
std::vector<std::int32_t> chosen(std::array<float, 8> const& keys, budgets::fractions fractions, bool literal,
                                 std::int32_t depth = 3) {
  auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
  byte_strides const strides{.layer = 32, .head = 4, .token = 4, .dim = 4};
  strided_view<> const view{{1, 1, 1, 1, 8, element_type::f32}, 8, base, base, strides, strides};
  keep const rule{segments::hierarchy{1, 2, 2},
                  pools::hierarchical_mean{},
                  scorers::anchor_affinity{.recent_pages = 1},
                  fractions,
                  selectors::cascade{.paper_literal = literal, .depth = depth},
                  windows::pages{.size = 1},
                  triggers::every_step{}};
  host_exec exec;
  auto summaries = rule.pool.start(view.shape(), rule.segment);
  rule.pool.update(summaries, view, {0}, {0, 1}, 8, exec);
  auto scratch = rule.select.start(rule, view.shape());
  auto memory = rule.score.start(view.shape());
  score_input<strided_view<>, decltype(summaries), decltype(memory)> input{view, {0}, {0, 1}, 8, 0, summaries, memory};
  std::vector<std::int32_t> pages;
  rule.select.select(rule, scratch, input, rule.window.at(8), exec,
                     [&](std::int64_t list, std::int64_t begin, std::int64_t end) {
                       REQUIRE(list == 0);
                       REQUIRE(end == begin + 1);
                       pages.push_back(static_cast<std::int32_t>(begin));
                     });
  return pages;
}

// Anchor 1. Grids 2 and 1: the first is kept. Its chunks score 3 and 1: the first. Its pages 2 and 4: page 1. Page 6 has the
// highest key of all, 9, but its grid is dead.
TEST_CASE("a page under a dropped grid is never chosen", "[select]") {
  REQUIRE(chosen({2, 4, 1, 1, -3, -3, 9, 1}, {.5f, .5f, .5f}, false) == std::vector<std::int32_t>{1});
}

// Anchor -1 and keys of the other sign: every score is negative, grids -2 and -3.5 (pages 4..7 hold the anchor's own page,
// which scores 1 by itself). The live grid's chunks score -1.5 and -2.5, its pages -1 and -2. Zeroed scores of dead units
// raise the printed algorithm's threshold to 0, above every live one: it keeps nothing. Dead units as -inf keep page 0.
TEST_CASE("where live scores are negative the printed algorithm keeps nothing, and the chosen reading the best", "[select]") {
  std::array<float, 8> const keys{1, 2, 2, 3, 5, 5, 5, -1};
  REQUIRE(chosen(keys, {.5f, .5f, .5f}, false) == std::vector<std::int32_t>{0});
  REQUIRE(chosen(keys, {.5f, .5f, .5f}, true).empty());
}

// As in the first case: without grids the chunks 3, 1, -3, 5 are all live and the last of them is kept, with pages 9 and 1;
// without chunks every page competes.
TEST_CASE("a hierarchy of fewer levels drops nothing at those that it has not", "[select]") {
  std::array<float, 8> const keys{2, 4, 1, 1, -3, -3, 9, 1};
  REQUIRE(chosen(keys, {.5f, .25f, .5f}, false, 2) == std::vector<std::int32_t>{6});
  REQUIRE(chosen(keys, {.5f, .25f, .25f}, false, 1) == std::vector<std::int32_t>{1, 6});
}

/// Pages that a budget of tokens chooses among `tokens` random ones, and how many of them the window protects.
struct spent {
  std::int64_t chosen = 0;
  std::int64_t protected_ones = 0;
};
spent spend(kvpolicy_test::random_source& random, std::int64_t tokens, std::int32_t budget, std::int32_t depth,
            segments::hierarchy const& units, windows::pages const& window) {
  std::vector<float> const keys = random.reals(tokens, 1);
  auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
  byte_strides const strides{.layer = 4 * tokens, .head = 4, .token = 4, .dim = 4};
  strided_view<> const view{{1, 1, 1, 1, tokens, element_type::f32}, tokens, base, base, strides, strides};
  protected_tokens const safe = window.at(tokens);
  auto const pages_of = [&](auto const& within) {
    keep const rule{units,
                    pools::hierarchical_mean{},
                    scorers::anchor_affinity{.recent_pages = window.recent_pages},
                    within,
                    selectors::cascade{.depth = depth},
                    window,
                    triggers::every_step{}};
    host_exec exec;
    auto summaries = rule.pool.start(view.shape(), rule.segment);
    rule.pool.update(summaries, view, {0}, {0, 1}, tokens, exec);
    auto scratch = rule.select.start(rule, view.shape());
    auto memory = rule.score.start(view.shape());
    score_input<strided_view<>, decltype(summaries), decltype(memory)> input{view, {0}, {0, 1}, tokens, 0, summaries, memory};
    range_list pages;
    rule.select.select(rule, scratch, input, safe, exec, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
      pages.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
    });
    return pages;
  };
  range_list const pages = pages_of(budgets::fractions{.tokens = budget});
  REQUIRE(pages == pages_of(budgets::tokens{.count = budget}));
  spent made;
  for (token_range const& page : pages) {
    made.chosen += page.end - page.begin;
    if (page.begin < safe.sink_end || page.end > safe.recent_begin) ++made.protected_ones;
  }
  return made;
}

// However many levels there are, and wherever the first and the last candidates stand in their chunks and grids.
TEST_CASE("a budget of tokens is filled with scored pages, and none that is read anyway", "[select]") {
  kvpolicy_test::random_source random(65);
  std::int64_t filled = 0;
  for (int round = 0; round < 2000; ++round) {
    std::int64_t const tokens = random.between(1, 400);
    auto const number = [&](int low, int high) { return static_cast<std::int32_t>(random.between(low, high)); };
    segments::hierarchy const units{number(1, 12), number(1, 6), number(1, 6)};
    windows::pages const window{.size = units.page, .sink_pages = number(0, 2), .recent_pages = number(1, 4)};
    std::int32_t const budget = number(1, 300);
    protected_tokens const safe = window.at(tokens);
    std::int64_t const candidates = (safe.recent_begin - safe.sink_end) / units.page;
    std::int64_t const room = std::max<std::int64_t>(0, budget - safe.counted) / units.page;
    for (std::int32_t depth = 1; depth <= 3; ++depth) {
      spent const made = spend(random, tokens, budget, depth, units, window);
      INFO("round " << round << " tokens " << tokens << " budget " << budget << " depth " << depth << " page " << units.page);
      REQUIRE(made.protected_ones == 0);
      REQUIRE(made.chosen == std::min(room, candidates) * units.page);
    }
    filled += room > 0 && room < candidates ? 1 : 0;
  }
  REQUIRE(filled >= 500);
}

TEST_CASE("a hierarchy has one to three levels", "[select]") {
  for (std::int32_t const depth : {1, 2, 3}) REQUIRE_NOTHROW(selectors::cascade{.depth = depth}.check(0, {}));
  for (std::int32_t const depth : {0, 4, -1}) REQUIRE_THROWS_AS(selectors::cascade{.depth = depth}.check(0, {}), invalid_value);
}

}  // namespace
}  // namespace kvpolicy
