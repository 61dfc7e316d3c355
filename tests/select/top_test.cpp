#include "kvpolicy/select/top.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "kvpolicy/budget/tokens.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/none.hpp"
#include "kvpolicy/segment/pages.hpp"
#include "kvpolicy/trigger/every_step.hpp"
#include "kvpolicy/window/pages.hpp"

namespace kvpolicy {
namespace {

/// Scores written down by the test.
struct given_scores {
  static constexpr signals needs = signals::none;
  static constexpr scope how_fine = scope::head;
  float const* scores = nullptr;  // [2, 8]

  template <class Input, executor Exec>
  void score(Input const&, table<float> out, Exec&) const {
    for (std::int64_t list = 0; list < 2; ++list) {
      for (std::int64_t unit = 0; unit < out.columns; ++unit) out(list, unit) = scores[list * 8 + unit];
    }
  }
};

/// The units that each of two lists gets of 8 pages of 4 tokens, page 0 being a sink and page 7 open.
std::vector<std::vector<std::int32_t>> chosen(std::int32_t budget, std::array<float, 16> const& scores) {
  cache_shape const shape{.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 1, .max_tokens = 32};
  keep const act{segment::pages{4},      pool::none{},  given_scores{scores.data()},
                 budget::tokens{budget}, select::top{}, window::pages{.size = 4, .sink_pages = 1, .recent_pages = 1},
                 trigger::every_step{}};
  act.select.check(act, shape);
  auto scratch = act.select.start(act, shape, 2);
  strided_view<> const view{.cache = shape, .token_count = 30};
  pool::none::summaries nothing;
  score_input<strided_view<>, pool::none::summaries> input{view, {0}, 30, nothing, {}, {}};
  host_exec exec;
  std::vector<std::vector<std::int32_t>> lists(2);
  act.select.select(act, scratch, input, act.window.at(30), 2, exec,
                    [&](std::int64_t list, std::span<std::int32_t const> units) {
                      lists[static_cast<std::size_t>(list)].assign(units.begin(), units.end());
                    });
  return lists;
}

// The sink and the open page score best and worst: neither is emitted, both count.
constexpr std::array<float, 16> scores{99, 1, 5, 3, 5, 2, 0, -9,  //
                                       99, 4, 4, 4, 4, 4, 4, -9};

TEST_CASE("each list gets its best units beside those that are protected", "[select]") {
  auto const lists = chosen(16, scores);  // four pages: two protected, two to choose
  REQUIRE(lists[0] == std::vector<std::int32_t>{2, 4});
  REQUIRE(lists[1] == std::vector<std::int32_t>{1, 2});  // ties go to the smaller index
}

TEST_CASE("a budget of what is protected chooses nothing, one of everything chooses all", "[select]") {
  REQUIRE(chosen(8, scores)[0].empty());
  REQUIRE(chosen(32, scores)[0] == std::vector<std::int32_t>{1, 2, 3, 4, 5, 6});
  REQUIRE_THROWS_AS(chosen(7, scores), invalid_value);
}

}  // namespace
}  // namespace kvpolicy
