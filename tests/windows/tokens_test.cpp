#include "kvpolicy/windows/tokens.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("a window of tokens protects the first and the last ones", "[window]") {
  protected_tokens const safe = windows::tokens{.sinks = 4, .recent = 10}.at(100);
  REQUIRE(safe.sink_end == 4);
  REQUIRE(safe.recent_begin == 90);
  REQUIRE(safe.open_begin == 100);
  REQUIRE(safe.counted == 14);
}

TEST_CASE("in a short sequence the recent tokens come first", "[window]") {
  protected_tokens const safe = windows::tokens{.sinks = 4, .recent = 10}.at(12);
  REQUIRE(safe.sink_end == 2);
  REQUIRE(safe.recent_begin == 2);
  REQUIRE(windows::tokens{.sinks = 4, .recent = 10}.at(3).recent_begin == 0);
}

TEST_CASE("a window may be a share of the budget, where that is more than its recent tokens", "[window]") {
  windows::tokens const half{.sinks = 1, .recent = 3, .share = .5};
  REQUIRE(half.at(100, 100, 40).recent_begin == 80);
  REQUIRE(half.at(100, 100, 41).recent_begin == 80);  // rounded down
  REQUIRE(half.at(100, 100, 4).recent_begin == 97);
  REQUIRE(half.at(10, 10, 40).recent_begin == 0);
  REQUIRE(half.at(10, 10, 40).sink_end == 0);
}

TEST_CASE("a window may be of no recent tokens at all", "[window]") {
  protected_tokens const safe = windows::tokens{.sinks = 4, .recent = 0}.at(12);
  REQUIRE(safe.sink_end == 4);
  REQUIRE(safe.recent_begin == 12);
  REQUIRE(safe.counted == 4);
}

TEST_CASE("what is generated can be protected beyond the budget: it does not count", "[window]") {
  windows::tokens const window{.sinks = 2, .recent = 3, .generated = true};
  protected_tokens const safe = window.at(100, 60);
  REQUIRE(safe.sink_end == 2);
  REQUIRE(safe.recent_begin == 60);
  REQUIRE(safe.counted == 2);
  REQUIRE(window.at(61, 60).recent_begin == 60);
  REQUIRE(window.at(100, 1).sink_end == 1);
  // At the prompt's end nothing is generated yet: the prompt's own recent tokens are protected, and count.
  REQUIRE(window.at(60, 60).recent_begin == 57);
  REQUIRE(window.at(60, 60).counted == 5);
}

TEST_CASE("a window of fewer than no tokens, or of a share that is none, is refused", "[window]") {
  REQUIRE_NOTHROW(windows::tokens{}.check(1));
  REQUIRE_NOTHROW((windows::tokens{.recent = 0}.check(1)));
  REQUIRE_THROWS_WITH((windows::tokens{.recent = -1}.check(1)), ContainsSubstring("-1 recent tokens"));
  REQUIRE_THROWS_AS((windows::tokens{.sinks = -1}.check(1)), invalid_value);
  REQUIRE_THROWS_AS((windows::tokens{.share = 1.5}.check(1)), invalid_value);
  REQUIRE_THROWS_AS((windows::tokens{.share = -.1}.check(1)), invalid_value);
  REQUIRE_THROWS_AS((windows::tokens{.share = std::numeric_limits<double>::quiet_NaN()}.check(1)), invalid_value);
}

}  // namespace
}  // namespace kvpolicy
