#include "kvpolicy/triggers/every.hpp"

#include <catch2/catch_test_macros.hpp>

namespace kvpolicy {
namespace {

TEST_CASE("every so many steps the choice is made anew, and never where that is 0", "[trigger]") {
  auto const due = [](std::int32_t steps, std::int64_t since) {
    return triggers::every{steps}.due(triggers::every{}.start({}), {3}, {1}, since);
  };
  REQUIRE_FALSE(due(6, 5));
  REQUIRE(due(6, 6));
  REQUIRE(due(6, 7));
  REQUIRE(due(1, 1));
  REQUIRE_FALSE(due(0, 1000));
}

}  // namespace
}  // namespace kvpolicy
