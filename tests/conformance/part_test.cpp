// One suite for each concept of small parts: segmenter, window, trigger, budget, scorer.
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <limits>

#include "conformance/random_cache.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

TEMPLATE_TEST_CASE("a segmenter's units hold at least one token", "[part]", segments::pages, segments::hierarchy,
                   segments::tokens, segments::sentences) {
  STATIC_REQUIRE(segmenter<TestType>);
  STATIC_REQUIRE(TestType::ragged == std::is_same_v<TestType, segments::sentences>);
  REQUIRE(TestType{}.unit_size() >= 1);
}

TEST_CASE("segmenters' units are as long as they were told", "[part]") {
  REQUIRE(segments::pages{.size = 5}.unit_size() == 5);
  REQUIRE(segments::hierarchy{.page = 7}.unit_size() == 7);
  REQUIRE(segments::tokens{}.unit_size() == 1);
  REQUIRE(segments::sentences{.longest = 9}.unit_size() == 9);
}

struct page_windows {
  static windows::pages draw(random_source& random) {
    return {static_cast<std::int32_t>(random.between(1, 40)), static_cast<std::int32_t>(random.between(0, 4)),
            static_cast<std::int32_t>(random.between(1, 5))};
  }
  static std::int64_t sinks(windows::pages const& w) { return w.sink_pages * w.size; }
  /// Tokens of the last pages, the open one included.
  static std::int64_t recent(windows::pages const& w, std::int64_t n) {
    std::int64_t const last = n - (n - 1) / w.size * w.size;
    return last + (std::max(1, w.recent_pages) - 1) * w.size;
  }
  static std::int64_t open(windows::pages const& w, std::int64_t n) { return n % w.size; }
  /// What the open unit lacks to be whole; it counts as if it were.
  static std::int64_t lacking(windows::pages const& w, std::int64_t n) { return (w.size - n % w.size) % w.size; }
};

struct token_windows {
  static windows::tokens draw(random_source& random) {
    return {static_cast<std::int32_t>(random.between(0, 9)), static_cast<std::int32_t>(random.between(1, 30))};
  }
  static std::int64_t sinks(windows::tokens const& w) { return w.sinks; }
  static std::int64_t recent(windows::tokens const& w, std::int64_t) { return std::max(1, w.recent); }
  static std::int64_t open(windows::tokens const&, std::int64_t) { return 0; }
  static std::int64_t lacking(windows::tokens const&, std::int64_t) { return 0; }
};

/// From the last whole partition on, where there are two of them; else everything.
struct lag_windows {
  static windows::lag draw(random_source& random) {
    return {static_cast<std::int32_t>(random.between(0, 9)), static_cast<std::int32_t>(random.between(1, 30))};
  }
  static std::int64_t sinks(windows::lag const& w) { return w.sinks; }
  static std::int64_t recent(windows::lag const& w, std::int64_t n) {
    std::int64_t rest = std::max<std::int64_t>(0, n - w.sinks);
    while (rest >= 3 * w.size) rest -= w.size;
    return rest >= 2 * w.size ? rest - w.size : rest;
  }
  static std::int64_t open(windows::lag const&, std::int64_t) { return 0; }
  static std::int64_t lacking(windows::lag const&, std::int64_t) { return 0; }
};

TEMPLATE_TEST_CASE("a window protects its sinks, its recent tokens and the open unit, in order, the last token always",
                   "[part]", page_windows, token_windows, lag_windows) {
  random_source random(141);
  for (int round = 0; round < 3000; ++round) {
    auto const window = TestType::draw(random);
    std::int64_t const n = random.between(1, 200);
    protected_tokens const safe = window.at(n);
    INFO("round " << round << " tokens " << n);
    REQUIRE(0 <= safe.sink_end);
    REQUIRE(safe.sink_end <= safe.recent_begin);
    REQUIRE(safe.recent_begin <= safe.open_begin);
    REQUIRE(safe.open_begin <= n);
    REQUIRE((safe.recent_begin < n || safe.sink_end == n));
    REQUIRE(safe.recent_begin == std::max<std::int64_t>(0, n - TestType::recent(window, n)));
    REQUIRE(safe.sink_end == std::min(TestType::sinks(window), safe.recent_begin));
    REQUIRE(n - safe.open_begin == TestType::open(window, n));
    REQUIRE(safe.counted == safe.sink_end + n - safe.recent_begin + TestType::lacking(window, n));
    REQUIRE(safe.recent == n - safe.recent_begin);
  }
}

TEST_CASE("a window that can't be, or cuts units apart, is refused", "[part]") {
  REQUIRE_NOTHROW(windows::pages{16, 0, 1}.check(16));
  REQUIRE_THROWS_AS((windows::pages{16, 0, 1}.check(8)), invalid_value);
  REQUIRE_THROWS_AS((windows::pages{16, -1, 1}.check(16)), invalid_value);
  REQUIRE_THROWS_AS((windows::pages{16, 0, 0}.check(16)), invalid_value);
  REQUIRE_NOTHROW(windows::tokens{0, 0}.check(1));
  REQUIRE_THROWS_AS((windows::tokens{0, -1}.check(1)), invalid_value);
  REQUIRE_THROWS_AS((windows::tokens{-1, 1}.check(1)), invalid_value);
  REQUIRE_NOTHROW(windows::lag{0, 1}.check(1));
  REQUIRE_THROWS_AS((windows::lag{-1, 1}.check(1)), invalid_value);
  REQUIRE_THROWS_AS((windows::lag{0, 0}.check(1)), invalid_value);
}

// A retain may lose it: it is there until the step is over. A retrieve would not read it.
TEST_CASE("a window that could lose the current token is refused to a retrieve, and to no retain", "[part]") {
  cache_shape const shape{1, 1, 1, 8, 100, element_type::f16};
  keep rule{segments::tokens{},           pools::none{},       scorers::key_norm{}, budgets::tokens{50}, selectors::top{},
            windows::tokens{.recent = 0}, triggers::prefill{}, layering{}};
  REQUIRE_NOTHROW(check(policy{rule, keep_all{}}, shape));
  REQUIRE_THROWS_AS(check(policy{keep_all{}, rule}, shape), invalid_value);
  rule.window.recent = 1;
  REQUIRE_NOTHROW(check(policy{keep_all{}, rule}, shape));
}

TEST_CASE("a window of no tokens protects none", "[part]") {
  for (protected_tokens const& safe : {windows::pages{}.at(0), windows::tokens{}.at(0), windows::lag{}.at(0)}) {
    REQUIRE(safe.sink_end == 0);
    REQUIRE(safe.recent_begin == 0);
    REQUIRE(safe.open_begin == 0);
    REQUIRE(safe.counted == 0);
  }
}

TEST_CASE("triggers: always at every step, never after the prompt, and not before anything was seen", "[part]") {
  STATIC_REQUIRE(trigger_part<triggers::every_step>);
  cache_shape const shape{1, 1, 1, 8, 100, element_type::f16};
  REQUIRE(triggers::every_step::due(triggers::every_step::start(shape), {0}, {0}, 1));
  REQUIRE_FALSE(triggers::prefill::due(triggers::prefill::start(shape), {0}, {0}, 1000));
  REQUIRE_FALSE(triggers::entropy{}.due(triggers::entropy{}.start(shape), {0}, {0}, 1000));
  STATIC_REQUIRE(triggers::entropy::needs == signals::logits);
  STATIC_REQUIRE(triggers::every_step::needs == signals::none);
}

TEST_CASE("a budget of tokens is what it says, within the context", "[part]") {
  cache_shape const shape{1, 1, 1, 8, 100, element_type::f16};
  REQUIRE(budgets::tokens{1}.most_tokens(shape) == 1);
  REQUIRE(budgets::tokens{100}.most_tokens(shape) == 100);
  REQUIRE(budgets::tokens{101}.most_tokens(shape) == 100);
  REQUIRE_NOTHROW(budgets::tokens{1}.check(shape));
  REQUIRE_NOTHROW(budgets::tokens{100}.check(shape));
  for (std::int32_t const wrong : {0, -1}) REQUIRE_THROWS_AS(budgets::tokens{wrong}.check(shape), invalid_value);
}

TEST_CASE("fractions are above 0 and at most 1, each of them, NaN none", "[part]") {
  cache_shape const shape{1, 1, 1, 8, 100, element_type::f16};
  REQUIRE_NOTHROW(budgets::fractions{1, 1, 1}.check(shape));
  REQUIRE_NOTHROW(budgets::fractions{.01f, .5f, 1e-6f}.check(shape));
  REQUIRE(budgets::fractions{}.most_tokens(shape) == 100);
  for (float const wrong : {0.0f, -.1f, 1.01f, std::numeric_limits<float>::quiet_NaN()}) {
    REQUIRE_THROWS_AS((budgets::fractions{wrong, 1, 1}.check(shape)), invalid_value);
    REQUIRE_THROWS_AS((budgets::fractions{1, wrong, 1}.check(shape)), invalid_value);
    REQUIRE_THROWS_AS((budgets::fractions{1, 1, wrong}.check(shape)), invalid_value);
  }
}

TEST_CASE("recency scores later units higher", "[part]") {
  std::vector<float> scores(50, -1);
  host_exec exec;
  scorers::recency{}.score(0, table<float>{scores.data(), 1, 50, 50}, exec);
  for (std::size_t i = 1; i < scores.size(); ++i) REQUIRE(scores[i] > scores[i - 1]);
}

TEST_CASE("scorers that can evict say so, and those that need the prompt can't", "[part]") {
  STATIC_REQUIRE(evicting_scorer<scorers::recency>);
  STATIC_REQUIRE(evicting_scorer<scorers::last_attention>);
  STATIC_REQUIRE(evicting_scorer<scorers::accumulated_attention>);
  STATIC_REQUIRE_FALSE(evicting_scorer<scorers::window_attention>);
  STATIC_REQUIRE_FALSE(evicting_scorer<scorers::upper_bound>);
  STATIC_REQUIRE_FALSE(scorers::recency::after_attention);
  STATIC_REQUIRE(scorers::last_attention::after_attention);
}

TEST_CASE("what parts need is what presets need", "[part]") {
  STATIC_REQUIRE(parts_t<presets::full>::needs == signals::none);
  STATIC_REQUIRE(parts_t<presets::quest>::needs == (signals::keys | signals::queries));
  STATIC_REQUIRE(parts_t<presets::snapkv>::needs == (signals::keys | signals::observation_queries));
  STATIC_REQUIRE(parts_t<presets::streaming_llm>::needs == signals::none);
  STATIC_REQUIRE(parts_t<presets::chess>::needs == (signals::keys | signals::logits | signals::rotation));
  STATIC_REQUIRE(parts_t<presets::h2o>::needs == (signals::keys | signals::queries | signals::observation_queries));
  STATIC_REQUIRE(parts_t<presets::expected_attention>::needs ==
                 (signals::keys | signals::values | signals::observation_queries | signals::rotation));
  STATIC_REQUIRE(parts_t<presets::sentencekv>::needs ==
                 (signals::keys | signals::queries | signals::observation_queries | signals::token_ids));
  STATIC_REQUIRE(parts_t<presets::quest>::granularity == scope::head);
  STATIC_REQUIRE(parts_t<presets::chunkkv>::granularity == scope::layer);
  STATIC_REQUIRE(parts_t<presets::tova>::granularity == scope::layer);
  STATIC_REQUIRE(parts_t<presets::chess>::granularity == scope::request);
}

}  // namespace
}  // namespace kvpolicy_test
