#include "kvpolicy/rule.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <vector>

#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy {
namespace {

constexpr cache_shape shape{8, 4, 2, 8, 300, element_type::f16};

TEST_CASE("behind the dense layers every so many take over the first one's choice", "[rule]") {
  layering const layers{.dense_first = 2, .reuse = 3};
  std::vector<std::int64_t> leaders;
  for (std::int64_t l = 0; l < 10; ++l) {
    leaders.push_back(layers.leader({l}).value);
    REQUIRE(layers.dense({l}) == (l < 2));
  }
  REQUIRE(leaders == std::vector<std::int64_t>{0, 1, 2, 2, 2, 5, 5, 5, 8, 8});
  for (std::int64_t l = 0; l < 10; ++l) REQUIRE(layering{}.leader({l}).value == l);
}

TEST_CASE("named layers lead those behind them, and the first of a group may read everything", "[rule]") {
  layering const layers{.leaders = layer_set::of(std::array{2, 8, 130}), .whole = 2};
  auto const leader = [&](std::int64_t l) { return layers.leader({l}).value; };
  CHECK(std::vector{leader(2), leader(7), leader(8), leader(129), leader(130), leader(400)} ==
        std::vector<std::int64_t>{2, 2, 8, 8, 130, 130});
  for (std::int64_t const l : {0, 1}) CHECK((layers.dense({l}) && layers.reads_all({l}) && leader(l) == l));
  for (std::int64_t const l : {2, 3, 8, 9, 130, 131}) CHECK((!layers.dense({l}) && layers.reads_all({l})));
  for (std::int64_t const l : {4, 7, 10, 129, 132}) CHECK(!layers.reads_all({l}));
  CHECK(layers.shares());
  CHECK_FALSE(layering{.dense_first = 3}.shares());
  layering const behind{.dense_first = 5, .leaders = layer_set::of(std::array{2, 8})};  // layer 2 is dense itself
  for (std::int64_t l = 0; l < 10; ++l) CHECK(behind.dense({l}) == (l < 8));
  CHECK_THROWS_AS(layer_set::of(std::array{256}), invalid_value);
  CHECK_THROWS_AS(layer_set::of(std::array{-1}), invalid_value);
}

TEST_CASE("leaders are layers that the model has, named or counted, and a retain reads what it keeps", "[rule]") {
  auto const with = [](layering const& layers) { return presets::quest{.tokens = 64, .layers = layers}; };
  CHECK_NOTHROW(check(with({.leaders = layer_set::of(std::array{0, 7}), .whole = 1}), shape));
  CHECK_THROWS_WITH(check(with({.leaders = layer_set::of(std::array{0, 8})}), shape),
                    Catch::Matchers::ContainsSubstring("layer 8 is to lead, of a model with 8 layers"));
  CHECK_THROWS_AS(check(with({.reuse = 2, .leaders = layer_set::of(std::array{0})}), shape), invalid_value);
  CHECK_THROWS_AS(check(with({.whole = -1}), shape), invalid_value);
  CHECK_THROWS_AS(check(presets::tova{.tokens = 64, .layers = {.whole = 1}}, shape), invalid_value);
}

TEST_CASE("layers can't differ where one choice is for all, nor be fewer than none", "[rule]") {
  REQUIRE_NOTHROW(check(presets::quest{.tokens = 64, .layers = {2, 3}}, shape));
  REQUIRE_NOTHROW(check(presets::quest{.tokens = 64, .layers = {100, 100}}, shape));
  REQUIRE_THROWS_AS(check(presets::quest{.tokens = 64, .layers = {-1, 1}}, shape), invalid_value);
  REQUIRE_THROWS_AS(check(presets::quest{.tokens = 64, .layers = {0, 0}}, shape), invalid_value);
  keep rule = presets::streaming_llm{.tokens = 64}.parts().retain;
  REQUIRE_NOTHROW(check(rule, shape));
  rule.layers.reuse = 2;
  REQUIRE_THROWS_AS(check(rule, shape), invalid_value);
  rule.layers = {.dense_first = 1};
  REQUIRE_THROWS_AS(check(rule, shape), invalid_value);
}

TEST_CASE("a rule is as fine as its scorer, or as its selector where that is coarser", "[rule]") {
  STATIC_REQUIRE(decltype(presets::snapkv{.after = 0}.parts().retain)::granularity == scope::head);
  STATIC_REQUIRE(decltype(presets::chunkkv{.after = 0}.parts().retain)::granularity == scope::layer);
  STATIC_REQUIRE(decltype(presets::streaming_llm{}.parts().retain)::granularity == scope::request);
  STATIC_REQUIRE(decltype(presets::chess{}.parts().retrieve)::granularity == scope::request);
}

TEST_CASE("a policy says how many of a prompt's queries it looks at", "[rule]") {
  REQUIRE(observation_queries(presets::full{}) == 0);
  REQUIRE(observation_queries(presets::quest{}) == 0);
  REQUIRE(observation_queries(presets::snapkv{.window = 11, .after = 0}) == 11);
  REQUIRE(observation_queries(presets::h2o{}) == all_queries);
  REQUIRE(observation_queries(presets::h2o{.queries = 77}) == 77);
  REQUIRE(observation_queries(presets::tova{}) == 1);
  REQUIRE(observation_queries(policy{presets::snapkv{.window = 11, .after = 0}.parts().retain,
                                     presets::infllm{}.parts().retrieve}) == all_queries);
  REQUIRE_THROWS_AS(check(presets::snapkv{.tokens = 64, .window = 0, .after = 0}, shape), invalid_value);
  REQUIRE_THROWS_AS(check(presets::h2o{.tokens = 64, .queries = 0}, shape), invalid_value);
}

TEST_CASE("with thresholds that nothing passes chess needs no logits", "[rule]") {
  REQUIRE(needs_of(presets::chess::fixed_interval()) == signals::keys);
  REQUIRE(needs_of(presets::chess{.pre_rope = false}) == (signals::keys | signals::logits));
  REQUIRE(needs_of(presets::chess{}) == (signals::keys | signals::logits | signals::rotation));
}

TEST_CASE("a step's signals are an aggregate, without a token's id where none is given", "[rule]") {
  std::vector<float> const cells(8, 1.0f);
  query_heads const heads{cells.data(), 2, 4, .5f};
  REQUIRE(std::is_aggregate_v<step_signals>);
  REQUIRE(step_signals{.queries = heads}.token_id == -1);
  REQUIRE(step_signals{heads, 17}.token_id == 17);
  REQUIRE(step_signals{}.queries.data == nullptr);
}

TEST_CASE("a rule whose numbers would choose nothing, or garbage, is refused", "[rule]") {
  auto const refused = [](auto const& policy) { REQUIRE_THROWS_AS(start(policy, shape), invalid_value); };
  refused(presets::snapkv{.tokens = 64, .smooth = {.how = smoothing::kind::average, .width = 0}, .after = 0});
  refused(presets::snapkv{.tokens = 64, .smooth = {.how = smoothing::kind::maximum, .width = 6}, .after = 0});
  refused(presets::streaming_llm{.tokens = 4, .sinks = 4});  // no room for the current token
  refused(presets::chess{.fractions = {.tokens = 32}});      // its window of four pages has 64
  refused(presets::chess{.entropy = std::numeric_limits<float>::quiet_NaN()});
  refused(presets::chess{.rest = -1});
  refused(presets::chess{.every = -1});
  auto const retains = [](auto const& score, auto const& window) {
    return policy{keep{segments::tokens{}, pools::none{}, score, budgets::tokens{.count = 64}, selectors::top{}, window,
                       triggers::prefill{}},
                  keep_all{}};
  };
  windows::tokens const recent{.recent = 7};  // of 8 queries
  refused(retains(scorers::window_attention{.window = 8}, recent));
  refused(retains(scorers::recent_attention{.window = 8}, recent));
  using both = scorers::weighted_sum<scorers::recent_attention, scorers::redundancy>;
  refused(retains(both{.first = {.window = 8}}, recent));
  refused(retains(both{.first = {.window = 8}, .window = 4}, windows::tokens{.recent = 8}));
  REQUIRE_NOTHROW(start(retains(both{.first = {.window = 8}}, windows::tokens{.recent = 8}), shape));
  REQUIRE_NOTHROW(start(retains(scorers::window_attention{.window = 8, .include_window = true}, recent), shape));
  refused(retains(scorers::lag{.sinks = 4, .size = 16}, windows::lag{.sinks = 4, .size = 8}));
  refused(retains(scorers::lag{.sinks = 4, .size = 16}, windows::lag{.sinks = 0, .size = 16}));
  REQUIRE_THROWS_AS(scorers::lag{.size = 0}.start(shape), invalid_value);
  REQUIRE_NOTHROW(
      start(presets::snapkv{.tokens = 64, .after = INT32_MAX}, shape));  // waits to the end, without memory for more
}

}  // namespace
}  // namespace kvpolicy
