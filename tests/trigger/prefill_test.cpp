#include "kvpolicy/trigger/prefill.hpp"

#include <catch2/catch_test_macros.hpp>

namespace kvpolicy {
namespace {

TEST_CASE("after the prompt the choice stands", "[trigger]") {
  REQUIRE_FALSE(trigger::prefill::due(trigger::prefill::start({}), {0}, {0}, 1 << 30));
  STATIC_REQUIRE(trigger::prefill::wants() == signals::none);
}

}  // namespace
}  // namespace kvpolicy
