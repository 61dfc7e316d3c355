#include "kvpolicy/selectors/top.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <utility>
#include <vector>

#include "kvpolicy/budgets/tokens.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/segments/pages.hpp"
#include "kvpolicy/segments/tokens.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "kvpolicy/windows/pages.hpp"
#include "kvpolicy/windows/tokens.hpp"

namespace kvpolicy {
namespace {

/// Scores written down by the test.
template <scored What>
struct given_scores {
  static constexpr signals needs = signals::none;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = What;
  float const* scores = nullptr;  // [2, stride]
  std::int64_t stride = 8;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec&) const {
    for (std::int64_t list = 0; list < out.rows; ++list) {
      for (std::int64_t unit = 0; unit < out.columns; ++unit) {
        out(list, unit) = scores[(input.heads.first + list) * stride + unit];
      }
    }
  }
};

constexpr cache_shape shape{.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 1, .max_tokens = 32};
using ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// The ranges that a rule emits for each list, of 30 tokens and the heads named.
template <class Rule>
std::vector<ranges> emitted(Rule const& rule, head_range heads = {0, 2}) {
  rule.select.check(rule, shape);
  auto scratch = rule.select.start(rule, shape);
  strided_view<> const view{.cache = shape, .token_count = 30};
  pools::none::summaries nothing;
  no_memory memory;
  score_input<strided_view<>, pools::none::summaries, no_memory> input{view, {0}, heads, 30, 30, nothing, memory};
  host_exec exec;
  std::vector<ranges> lists(Rule::granularity == scope::head ? static_cast<std::size_t>(heads.count) : 1);
  rule.select.select(rule, scratch, input, rule.window.at(30), exec,
                     [&](std::int64_t list, std::int64_t begin, std::int64_t end) {
                       lists[static_cast<std::size_t>(list)].emplace_back(begin, end);
                     });
  return lists;
}

template <class Select>
auto by_page(std::int32_t budget, std::array<float, 16> const& scores, Select select) {
  return keep{segments::pages{4},      pools::none{}, given_scores<scored::units>{scores.data()},
              budgets::tokens{budget}, select,        windows::pages{.size = 4, .sink_pages = 1, .recent_pages = 1},
              triggers::every_step{}};
}

/// The units that each of two lists gets of 8 pages of 4 tokens, page 0 being a sink and page 7 open.
std::vector<std::vector<std::int32_t>> chosen(std::int32_t budget, std::array<float, 16> const& scores) {
  std::vector<std::vector<std::int32_t>> lists;
  for (ranges const& list : emitted(by_page(budget, scores, selectors::top{}))) {
    lists.emplace_back();
    for (auto const& [begin, end] : list) {
      REQUIRE(begin % 4 == 0);
      REQUIRE(end == begin + 4);
      lists.back().push_back(static_cast<std::int32_t>(begin / 4));
    }
  }
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

TEST_CASE("asked for one head alone, the one list is that head's", "[select]") {
  std::vector<ranges> const lists = emitted(by_page(16, scores, selectors::top{}), {1, 1});
  REQUIRE(lists == std::vector<ranges>{{{4, 8}, {8, 12}}});
}

// Sums over the heads: 5, 9, 7, 9, 6, 4.
TEST_CASE("a layer's one list is by the sum of its heads' scores", "[select]") {
  REQUIRE(emitted(by_page(12, scores, selectors::top_of_layer{})) == std::vector<ranges>{{{8, 12}}});
  REQUIRE(emitted(by_page(20, scores, selectors::top_of_layer{})) == std::vector<ranges>{{{8, 12}, {12, 16}, {16, 20}}});
}

// Tokens 2 and 28.. are protected, so the page of 0..3 is scored by its tokens 2 and 3 alone, that of 24..27 by all.
// Head 0, pages of 4:  5 5 | 1 1 1 9 | 4 4 4 4 | 0 ...: sums 10, 12, 16; means 5, 3, 4; maxima 5, 9, 4.
TEST_CASE("scores of tokens are merged into their unit's, without those that are protected", "[select]") {
  std::array<float, 64> by_token{};
  std::array<float, 12> const head{99, 99, 5, 5, 1, 1, 1, 9, 4, 4, 4, 4};
  std::copy(head.begin(), head.end(), by_token.begin());
  auto const best_of = [&](selectors::merge by) {
    keep const rule{segments::pages{4},
                    pools::none{},
                    given_scores<scored::tokens>{by_token.data(), 32},
                    budgets::tokens{10},
                    selectors::top{.by = by},
                    windows::tokens{.sinks = 2, .recent = 2},
                    triggers::every_step{}};
    std::vector<ranges> const lists = emitted(rule);  // 10 tokens, 4 protected: one page of 4
    REQUIRE(lists[0].size() == 1);
    return lists[0][0].first;
  };
  REQUIRE(best_of(selectors::merge::mean) == 0);
  REQUIRE(best_of(selectors::merge::maximum) == 4);
  REQUIRE(best_of(selectors::merge::sum) == 8);
}

TEST_CASE("a budget that follows the sequence is not refused for its window", "[select]") {
  keep rule{segments::tokens{},          pools::none{},    given_scores<scored::tokens>{},
            budgets::tokens{.count = 3}, selectors::top{}, windows::tokens{.recent = 8},
            triggers::every_step{}};
  REQUIRE_THROWS_AS(rule.select.check(rule, shape), invalid_value);
  rule.budget.ratio = .9;
  REQUIRE_NOTHROW(rule.select.check(rule, shape));
}

}  // namespace
}  // namespace kvpolicy
