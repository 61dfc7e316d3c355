#include "kvpolicy/segments/pages.hpp"

#include <catch2/catch_test_macros.hpp>

namespace kvpolicy {
namespace {

TEST_CASE("a page is a unit, of 16 tokens unless told", "[segment]") {
  REQUIRE(segments::pages{}.unit_size() == 16);
  REQUIRE(segments::pages{7}.unit_size() == 7);
}

}  // namespace
}  // namespace kvpolicy
