#include "kvpolicy/trigger/prefill.hpp"

#include <catch2/catch_test_macros.hpp>

namespace kvpolicy {
namespace {

TEST_CASE("after the prompt the choice stands", "[trigger]") {
  REQUIRE_FALSE(trigger::prefill::due(trigger::prefill::start()));
}

}  // namespace
}  // namespace kvpolicy
