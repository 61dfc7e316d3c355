#include "kvpolicy/select/cascade.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "kvpolicy/budget/fractions.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/score/anchor_affinity.hpp"
#include "kvpolicy/trigger/every_step.hpp"
#include "kvpolicy/window/pages.hpp"

namespace kvpolicy {
namespace {

/// Pages of one token and one channel, two to a chunk, two chunks to a grid; the anchor is the last page.
std::vector<std::int32_t> chosen(std::array<float, 8> const& keys, budget::fractions fractions, bool literal,
                                 std::int32_t depth = 3) {
  auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
  byte_strides const strides{.layer = 32, .head = 4, .token = 4, .dim = 4};
  strided_view<> const view{{1, 1, 1, 1, 8, element_type::f32}, 8, base, base, strides, strides};
  keep const act{segment::hierarchy{1, 2, 2},
                 pool::hierarchical_mean{},
                 score::anchor_affinity{.recent_pages = 1},
                 fractions,
                 select::cascade{.paper_literal = literal, .depth = depth},
                 window::pages{.size = 1},
                 trigger::every_step{}};
  host_exec exec;
  auto summaries = act.pool.start(view.shape(), act.segment);
  act.pool.update(summaries, view, {0}, {0, 1}, 8, exec);
  auto scratch = act.select.start(act, view.shape());
  auto memory = act.score.start(view.shape());
  score_input<strided_view<>, decltype(summaries), decltype(memory)> input{view, {0}, {0, 1}, 8, 0, summaries, memory};
  std::vector<std::int32_t> pages;
  act.select.select(act, scratch, input, act.window.at(8), exec, [&](std::int64_t list, std::int64_t begin, std::int64_t end) {
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

TEST_CASE("a hierarchy has one to three levels", "[select]") {
  for (std::int32_t const depth : {1, 2, 3}) REQUIRE_NOTHROW(select::cascade{.depth = depth}.check(0, {}));
  for (std::int32_t const depth : {0, 4, -1}) REQUIRE_THROWS_AS(select::cascade{.depth = depth}.check(0, {}), invalid_value);
}

}  // namespace
}  // namespace kvpolicy
