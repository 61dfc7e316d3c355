#include "kvpolicy/triggers/every_step.hpp"

#include <catch2/catch_test_macros.hpp>

namespace kvpolicy {
namespace {

TEST_CASE("every step chooses anew", "[trigger]") {
  REQUIRE(triggers::every_step::due(triggers::every_step::start({}), {0}, {0}, 1));
  STATIC_REQUIRE(triggers::every_step::wants() == signals::none);
}

}  // namespace
}  // namespace kvpolicy
