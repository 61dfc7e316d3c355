#include "kvpolicy/windows/lag.hpp"

#include <catch2/catch_test_macros.hpp>

namespace kvpolicy {
namespace {

// 4 sinks, partitions of 10: of 59 tokens five are whole, [4, 14) ... [44, 54), and the last of them is compared with by none.
TEST_CASE("a lag window protects its sinks and everything from the last whole partition on", "[window]") {
  windows::lag const window{.sinks = 4, .size = 10};
  protected_tokens const safe = window.at(59);
  REQUIRE(safe.sink_end == 4);
  REQUIRE(safe.recent_begin == 44);
  REQUIRE(safe.counted == 4 + 15);
  REQUIRE(window.at(54).recent_begin == 44);
  REQUIRE(window.at(53).recent_begin == 34);
}

TEST_CASE("with less than two whole partitions all is protected", "[window]") {
  windows::lag const window{.sinks = 4, .size = 10};
  REQUIRE(window.at(24).recent_begin == 14);
  for (std::int64_t const n : {5, 14, 23}) {
    REQUIRE(window.at(n).recent_begin == 4);
    REQUIRE(window.at(n).counted == n);
  }
  REQUIRE(window.at(3).sink_end == 3);
  REQUIRE(window.at(3).counted == 3);
}

}  // namespace
}  // namespace kvpolicy
