#include "kvpolicy/interop/page_table.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <set>
#include <vector>

#include "kvpolicy/testing/random_cache.hpp"

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

TEST_CASE("pages that no list of any layer names can be freed", "[interop]") {
  testing::random_source random(1);
  for (int round = 0; round < 200; ++round) {
    std::int64_t const heads = random.between(1, 3), layers = random.between(1, 3), tokens = random.between(0, 60);
    std::int64_t const page = random.between(1, 7);
    scope const granularity = random.between(0, 1) == 0 ? scope::head : scope::layer;
    std::set<std::int64_t> named;  // pages
    std::vector<std::vector<range_list>> lists(static_cast<std::size_t>(layers));
    for (auto& of_layer : lists) {
      of_layer.resize(static_cast<std::size_t>(granularity == scope::head ? heads : 1));
      for (range_list& list : of_layer) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          if (random.between(0, 9) != 0) continue;
          append(list, t, t + 1, random.between(0, 1) == 0 ? reason::scored : reason::open);
          named.insert(t / page);
        }
      }
    }
    std::vector<selection> retained;
    for (auto const& of_layer : lists) retained.emplace_back(granularity, of_layer, heads);
    std::vector<std::int32_t> expected;
    for (std::int32_t p = 0; (p + 1) * page <= tokens; ++p)
      if (!named.contains(p)) expected.push_back(p);
    REQUIRE(freeable_pages(retained, tokens, page) == expected);
  }
}

TEST_CASE("pages of lists that are not the sequence's are not freed", "[interop]") {
  range_list const list{{4, 12, reason::scored}};
  selection const one(scope::layer, {&list, 1}, 2);
  REQUIRE_THROWS_WITH(freeable_pages({}, 20, 4), ContainsSubstring("no selection"));
  REQUIRE_THROWS_WITH(freeable_pages({&one, 1}, 11, 4), ContainsSubstring("4..12 are retained of a sequence of 11"));
  REQUIRE_THROWS_WITH(freeable_pages({&one, 1}, 20, 0), ContainsSubstring("0 tokens"));
}

}  // namespace
}  // namespace kvpolicy
