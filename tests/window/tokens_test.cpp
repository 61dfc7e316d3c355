#include "kvpolicy/window/tokens.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("a window of tokens protects the first and the last ones", "[window]") {
  protected_tokens const safe = window::tokens{.sinks = 4, .recent = 10}.at(100);
  REQUIRE(safe.sink_end == 4);
  REQUIRE(safe.recent_begin == 90);
  REQUIRE(safe.open_begin == 100);
}

TEST_CASE("in a short sequence the recent tokens come first", "[window]") {
  protected_tokens const safe = window::tokens{.sinks = 4, .recent = 10}.at(12);
  REQUIRE(safe.sink_end == 2);
  REQUIRE(safe.recent_begin == 2);
  REQUIRE(window::tokens{.sinks = 4, .recent = 10}.at(3).recent_begin == 0);
}

TEST_CASE("a window of tokens that cuts units, or forgets the current token, is refused", "[window]") {
  REQUIRE_NOTHROW(window::tokens{}.check(1));
  REQUIRE_THROWS_WITH(window::tokens{}.check(16), ContainsSubstring("window::pages"));
  REQUIRE_THROWS_WITH((window::tokens{.recent = 0}.check(1)), ContainsSubstring("0 recent tokens"));
  REQUIRE_THROWS_AS((window::tokens{.sinks = -1}.check(1)), invalid_value);
}

}  // namespace
}  // namespace kvpolicy
