// Every scorer of the library keeps its promises, and a scorer that breaks one is found.
#include "kvpolicy/testing/check_scorer.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <set>
#include <string>

#include "kvpolicy/compose.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "kvpolicy/scorers/accumulated_attention.hpp"
#include "kvpolicy/scorers/by_token.hpp"
#include "kvpolicy/scorers/expected_attention.hpp"
#include "kvpolicy/scorers/lag.hpp"
#include "kvpolicy/scorers/query_mean_dot.hpp"
#include "kvpolicy/scorers/representatives.hpp"
#include "kvpolicy/testing/random_cache.hpp"

namespace kvpolicy::testing {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

TEST_CASE("every scorer under scorers/ keeps a scorer's promises", "[testing]") {
  std::set<std::string> checked;
  auto const check = [&](std::string const& header, auto const&... arguments) {
    INFO(header);
    REQUIRE_NOTHROW(check_scorer(arguments...));
    checked.insert(header);
  };
  constexpr segments::tokens tokens{};
  constexpr pools::none none{};
  auto const unscored = [](std::int64_t count) { return scorer_options{.unscored = count}; };
  check("accumulated_attention", scorers::accumulated_attention{});
  check("accumulated_attention", scorers::accumulated_attention{.mean = true, .window = 5});
  check("by_token", score_tokens([](auto key, auto value, auto age) {
          return norm(value) + dot(key, value) - .1f * static_cast<float>(age);
        }));
  check("current_attention", scorers::current_attention{group_merge::maximum, {smoothing::kind::maximum, 3}});
  check("current_attention", scorers::current_attention{});
  check("expected_attention", scorers::expected_attention{.sinks = 2, .future = 6});
  check("expected_attention", scorers::expected_attention{.covariance = false, .value_norm = false});
  check("key_norm", scorers::key_norm{});
  check("key_similarity", scorers::key_similarity{});
  check("lag", scorers::lag{.sinks = 0, .size = 4}, none, tokens, unscored(8));
  check("last_attention", scorers::last_attention{.window = 2, .smooth = {.how = smoothing::kind::average, .width = 3}}, none,
        tokens, unscored(2));
  check("pivot_attention", scorers::pivot_attention{.window = 2, .smooth = {.how = smoothing::kind::maximum, .width = 3}}, none,
        tokens, unscored(2));
  check("pivot_attention", scorers::pivot_attention{.window = 3, .merged = group_merge::maximum}, none, tokens, unscored(3));
  check("recency", scorers::recency{});
  check("recent_attention", scorers::recent_attention{.window = 3, .smooth = {}}, none, tokens, unscored(3));
  check("recent_attention", scorers::recent_attention{.window = 2, .merged = group_merge::mean}, none, tokens, unscored(2));
  check("redundancy", scorers::redundancy{});
  using both = scorers::weighted_sum<scorers::last_attention, scorers::redundancy>;
  check("weighted_sum", both{.first = {.window = 2}, .of_first = .3f, .of_second = -.7f}, none, tokens, unscored(2));
  check("window_attention", scorers::window_attention{.window = 3, .smooth = {.how = smoothing::kind::maximum, .width = 5}},
        none, tokens, unscored(3));
  check("upper_bound", scorers::upper_bound{group_merge::maximum}, pools::bounds{}, segments::pages{4});
  check("upper_bound", scorers::upper_bound{.channels = 3}, pools::bounds{}, segments::pages{4});
  check("upper_bound", scorers::upper_bound{}, pools::bounds{pools::bounds::kind::mean_deviation}, segments::pages{5});
  // Goes by the positions of what it is given: a token's representatives are found by the queries behind it.
  check("representatives", scorers::representatives{.block = 4, .count = 2, .local = 3, .pre_rope = true}, none,
        segments::pages{4}, scorer_options{.gathered = false});
  check("representatives", scorers::representatives{.block = 4, .count = 2, .local = 3}, none, segments::pages{4},
        scorer_options{.gathered = false});
  std::vector<std::uint8_t> boundary(10);
  boundary[3] = boundary[7] = 1;
  segments::sentences const sentences{.boundary = boundary, .longest = 9, .shortest = 2};
  check("query_mean_dot", scorers::query_mean_dot{}, pools::unit_mean{}, sentences, scorer_options{.gathered = false});
  check("query_mean_dot", scorers::query_mean_dot{.standing = .5, .window = 3, .budget = {.count = 8}}, pools::unit_mean{},
        sentences, scorer_options{.gathered = false});
  check("query_mean_dot", scorers::query_mean_dot{.carry = .5f}, pools::unit_mean{.spread = true}, sentences,
        scorer_options{.gathered = false});
  checked.insert("repetition_attention");    // scores when it has heard a repetition: tests/methods/kvzip_test.cpp
  checked.insert("trigonometric");           // needs moments of the one model: tests/methods/triattention_test.cpp
  checked.insert("anchor_affinity");         // makes an anchor, no scores: tests/scorers/anchor_affinity_test.cpp
  std::string const all = KVPOLICY_SCORERS;  // the headers' names, from the folder
  for (std::size_t at = 0; at < all.size();) {
    std::size_t const end = std::min(all.find(' ', at), all.size());
    INFO(all.substr(at, end - at) << " is not checked here");
    REQUIRE(checked.contains(all.substr(at, end - at)));
    at = end + 1;
  }
}

/// Minus the norm of the key, with one fault.
enum class fault { none, heads, gathered, cut, memory, neighbour };
template <fault Fault>
struct short_keys {
  static constexpr signals needs = signals::keys;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;

  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }

  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec&) const {
    static int calls = 0;
    auto keys = Fault == fault::heads || Fault == fault::neighbour ? input.view.keys(input.layer) : input.keys();
    if (Fault == fault::cut) keys.tokens = input.view.tokens();
    if (Fault == fault::gathered) keys.indices = nullptr;
    std::vector<float> key(static_cast<std::size_t>(keys.head_dim));
    std::int64_t const rows_written = Fault == fault::heads ? keys.heads : out.rows;
    for (std::int64_t h = 0; h < rows_written; ++h) {
      float total = 0;
      for (std::int64_t t = 0; Fault == fault::cut && t < keys.tokens; ++t) {
        keys.load({h}, {t}, key);
        for (float const x : key) total += x;
      }
      for (std::int64_t t = 0; t < out.columns; ++t) {
        keys.load({h}, {t}, key);
        float squares = total;
        for (float const x : key) squares += x * x;
        out(h, t) = -squares - (Fault == fault::memory ? static_cast<float>(++calls) : 0.0f);
      }
    }
  }
};

TEST_CASE("a scorer that loops over the heads of an unsliced view is found", "[testing]") {
  REQUIRE_THROWS_MATCHES(check_scorer<short_keys<fault::heads>>(), broken_promise,
                         MessageMatches(ContainsSubstring("writes row")));
  REQUIRE_THROWS_MATCHES(check_scorer<short_keys<fault::neighbour>>(), broken_promise,
                         MessageMatches(ContainsSubstring("asked for KV head")));
}
TEST_CASE("a scorer that reads rows by their strides, and so the wrong ones of gathered tokens, is found", "[testing]") {
  REQUIRE_THROWS_MATCHES(check_scorer<short_keys<fault::gathered>>(), broken_promise,
                         MessageMatches(ContainsSubstring("gathered tokens")));
}
TEST_CASE("a scorer that looks behind the tokens that the choice is made among is found", "[testing]") {
  REQUIRE_THROWS_MATCHES(check_scorer<short_keys<fault::cut>>(), broken_promise,
                         MessageMatches(ContainsSubstring("input.tokens")));
}
TEST_CASE("a scorer with a hidden counter is found, and one without a fault passes", "[testing]") {
  REQUIRE_THROWS_MATCHES(check_scorer<short_keys<fault::memory>>(), broken_promise,
                         MessageMatches(ContainsSubstring("second time")));
  REQUIRE_NOTHROW(check_scorer<short_keys<fault::none>>());
}

/// Quest's pool, but what it took in of tokens that were cut stays.
struct no_cut : pools::bounds {
  struct summaries : pools::bounds::summaries {
    void cut(layer_id, head_range, std::int64_t) noexcept {}
  };
  template <class Segment>
  summaries start(cache_shape const& shape, Segment const& segment) const {
    return {pools::bounds::start(shape, segment)};
  }
};
TEST_CASE("a pool that does not forget what is cut is found", "[testing]") {
  REQUIRE_THROWS_MATCHES(check_scorer(scorers::upper_bound{}, no_cut{}, segments::pages{4}), broken_promise,
                         MessageMatches(ContainsSubstring("cut from")));
}

}  // namespace
}  // namespace kvpolicy::testing
