#include "kvpolicy/interop/batch_table.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <vector>

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr table_entries folded{.page_size = 4, .tokens = 4, .kv_heads = 2, .rows = 2, .of_page = 2, .of_head = 1};
constexpr std::array<std::int32_t, 3> pages{7, 5, 9};

/// Lists of two KV heads over 10 tokens.
struct two_heads {
  std::vector<range_list> lists{{{0, 4, reason::sink}, {8, 10, reason::open}}, {{4, 10, reason::recent}}};
  selection kept() const { return {scope::head, lists, 2}; }
};

TEST_CASE("a batch's rows are written sequence by sequence, heads within, and an empty slot is an empty row", "[interop]") {
  two_heads const of;
  std::array const batch{paged_sequence{of.kept(), 10, pages}, paged_sequence{}};
  std::vector<std::int32_t> entries(4 * 3, -1);
  std::vector<std::int32_t> lengths(4, -1);
  write_rows(batch, folded, {entries.data(), 4, 3, 3}, lengths);
  REQUIRE(entries == std::vector<std::int32_t>{14, 18, -1, 11, 19, -1, -1, -1, -1, -1, -1, -1});
  REQUIRE(lengths == std::vector<std::int32_t>{6, 6, 0, 0});
}

TEST_CASE("what is refused is refused before anything is written", "[interop]") {
  two_heads const of;
  std::vector<std::int32_t> entries(4 * 3, -1);
  std::vector<std::int32_t> lengths(4, -1);
  auto const refused = [&](paged_sequence const& second, table_entries const& how, std::int64_t columns, char const* why) {
    std::array const batch{paged_sequence{of.kept(), 10, pages}, second};
    REQUIRE_THROWS_WITH(write_rows(batch, how, {entries.data(), 4, columns, 3}, lengths), ContainsSubstring(why));
    REQUIRE(entries == std::vector<std::int32_t>(12, -1));
    REQUIRE(lengths == std::vector<std::int32_t>(4, -1));
  };
  paged_sequence const fine{of.kept(), 10, pages};
  refused({of.kept(), 9, pages}, folded, 3, "names token 9, but the sequence has 9 tokens");
  refused({of.kept(), 10, std::span(pages).first(2)}, folded, 3, "past the end of a page table of 2");
  std::array<std::int32_t, 3> const freed{7, 5, -1};
  refused({of.kept(), 10, freed}, folded, 3, "page -1");
  refused(fine, folded, 1, "room for 1");
  table_entries shared = folded;
  shared.rows = 1;
  refused(fine, shared, 3, "fold heads into the batch");
  std::vector<range_list> const three(3, range_list{{0, 4, reason::sink}});
  refused({selection(scope::head, three, 3), 10, pages}, folded, 3, "chosen for 3 KV heads");
}

}  // namespace
}  // namespace kvpolicy
