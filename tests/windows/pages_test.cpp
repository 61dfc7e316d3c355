#include "kvpolicy/windows/pages.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("a window of pages protects whole pages, and the open one", "[window]") {
  windows::pages const window{.size = 16, .sink_pages = 1, .recent_pages = 2};
  protected_tokens const open = window.at(100);  // pages 0..6, the last holds 4 tokens
  REQUIRE(open.sink_end == 16);
  REQUIRE(open.recent_begin == 80);
  REQUIRE(open.open_begin == 96);
  REQUIRE(open.counted == 16 + 32);              // the open page counts as whole
  protected_tokens const whole = window.at(96);  // pages 0..5, none open
  REQUIRE(whole.recent_begin == 64);
  REQUIRE(whole.open_begin == 96);
  REQUIRE(window.at(20).sink_end == 0);  // everything is recent
}

TEST_CASE("a window of pages of another size than the units is refused", "[window]") {
  REQUIRE_NOTHROW(windows::pages{.size = 16}.check(16));
  REQUIRE_THROWS_WITH(windows::pages{.size = 16}.check(32), ContainsSubstring("16") && ContainsSubstring("32"));
  REQUIRE_THROWS_WITH((windows::pages{.size = 16, .recent_pages = 0}.check(16)), ContainsSubstring("0 recent"));
}

}  // namespace
}  // namespace kvpolicy
