#include "kvpolicy/segments/tokens.hpp"

#include <catch2/catch_test_macros.hpp>

namespace kvpolicy {
namespace {

TEST_CASE("a token is a unit", "[segment]") { REQUIRE(segments::tokens{}.unit_size() == 1); }

}  // namespace
}  // namespace kvpolicy
