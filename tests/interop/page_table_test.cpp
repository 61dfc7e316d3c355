#include "kvpolicy/interop/page_table.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <vector>
namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr std::array<std::int32_t, 6> pool{50, 40, 30, 20, 10, 0};  // of a sequence of up to 24 tokens in pages of 4

TEST_CASE("a page table lists the physical pages of a selection in the order of its tokens", "[interop]") {
  range_list const list{{0, 4, reason::sink}, {8, 16, reason::scored}, {20, 22, reason::open}};
  std::vector<std::int32_t> out(6, -1);
  page_list const written = page_table(list, 4, pool, out);
  REQUIRE(written.count == 4);
  REQUIRE(written.last_page_tokens == 2);
  REQUIRE(out == std::vector<std::int32_t>{50, 30, 20, 0, -1, -1});
}

TEST_CASE("ranges that touch inside a page share it", "[interop]") {
  range_list const list{{4, 7, reason::recent}, {7, 8, reason::open}};
  std::vector<std::int32_t> out(2, -1);
  page_list const written = page_table(list, 4, pool, out);
  REQUIRE(written.count == 1);
  REQUIRE(written.last_page_tokens == 4);
  REQUIRE(out[0] == 40);
}

TEST_CASE("nothing selected is an empty table", "[interop]") {
  std::vector<std::int32_t> out;
  REQUIRE(page_table({}, 4, pool, out).count == 0);
}

TEST_CASE("what has no page table is refused", "[interop]") {
  std::vector<std::int32_t> out(6);
  REQUIRE_THROWS_WITH(page_table({{1, 4, reason::sink}}, 4, pool, out), ContainsSubstring("not whole pages of 4"));
  REQUIRE_THROWS_WITH(page_table({{0, 3, reason::sink}, {4, 8, reason::open}}, 4, pool, out), ContainsSubstring("0..3"));
  REQUIRE_THROWS_WITH(page_table({{0, 28, reason::open}}, 4, pool, out), ContainsSubstring("token 27"));
  REQUIRE_THROWS_WITH(page_table({{0, 8, reason::open}}, 4, pool, std::span(out).first(1)), ContainsSubstring("room for"));
  REQUIRE_THROWS_WITH(page_table({{0, 8, reason::open}}, 0, pool, out), ContainsSubstring("0 tokens"));
  std::vector<std::int32_t> const short_of_one{5, -1};
  REQUIRE_THROWS_WITH(page_table({{0, 8, reason::open}}, 4, short_of_one, out), ContainsSubstring("token 4 is in page -1"));
}

}  // namespace
}  // namespace kvpolicy
