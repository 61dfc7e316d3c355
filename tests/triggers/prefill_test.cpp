#include "kvpolicy/triggers/prefill.hpp"

#include <catch2/catch_test_macros.hpp>

namespace kvpolicy {
namespace {

TEST_CASE("after the prompt the choice stands", "[trigger]") {
  REQUIRE_FALSE(triggers::prefill::due(triggers::prefill::start({}), {0}, {0}, 1 << 30));
  STATIC_REQUIRE(triggers::prefill::wants() == signals::none);
}

}  // namespace
}  // namespace kvpolicy
