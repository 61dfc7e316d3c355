#include "kvpolicy/trigger/every_step.hpp"

#include <catch2/catch_test_macros.hpp>

namespace kvpolicy {
namespace {

TEST_CASE("every step chooses anew", "[trigger]") {
  REQUIRE(trigger::every_step::due(trigger::every_step::start({}), {0}, {0}, 1));
  STATIC_REQUIRE(trigger::every_step::wants() == signals::none);
}

}  // namespace
}  // namespace kvpolicy
