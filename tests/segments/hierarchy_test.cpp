#include "kvpolicy/segments/hierarchy.hpp"

#include <catch2/catch_test_macros.hpp>

namespace kvpolicy {
namespace {

// Page size of the paper; chunks and grids are not printed there, 8 and 8 is this project's reading.
TEST_CASE("the units of a hierarchy are its pages", "[segment]") {
  segments::hierarchy const paper;
  REQUIRE(paper.unit_size() == 32);
  REQUIRE(paper.pages_per_chunk == 8);
  REQUIRE(paper.chunks_per_grid == 8);
}

}  // namespace
}  // namespace kvpolicy
