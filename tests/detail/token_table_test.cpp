#include "kvpolicy/detail/token_table.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>

#include "kvpolicy/archive.hpp"

namespace kvpolicy {
namespace {

TEST_CASE("a table that grows keeps each row's entries, and what is new is nothing") {
  token_table<int> grown(3, 2);
  REQUIRE(grown.room() == 0);
  grown.reserve(2);
  for (int r = 0; r < 3; ++r) {
    for (int i = 0; i < 4; ++i) grown.row(r)[i] = 10 * r + i;
  }
  grown.reserve(5);
  REQUIRE(grown.stride() == 10);
  for (int r = 0; r < 3; ++r) {
    for (int i = 0; i < 10; ++i) REQUIRE(grown.row(r)[i] == (i < 4 ? 10 * r + i : 0));
  }
  REQUIRE(*grown.entry(2, 1) == 22);
  grown.reserve(1);
  REQUIRE(grown.room() == 5);
}

TEST_CASE("a table is read back into one with as much room, and into no other") {
  token_table<int> from(2, 1);
  from.reserve(3);
  from.row(1)[2] = 7;
  std::vector<std::byte> bytes;
  state_writer writer(bytes);
  writer(from);
  token_table<int> same(2, 1);
  same.reserve(3);
  state_reader reader(bytes);
  reader(same);
  REQUIRE(same.row(1)[2] == 7);
  for (auto const& [rows, room] : {std::array{2, 4}, std::array{1, 3}, std::array{3, 3}}) {
    token_table<int> other(rows, 1);
    other.reserve(room);
    state_reader again(bytes);
    REQUIRE_THROWS_AS(again(other), invalid_value);
  }
}

}  // namespace
}  // namespace kvpolicy
