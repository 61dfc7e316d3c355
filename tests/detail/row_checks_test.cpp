#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <vector>

#include "kvpolicy/detail/row_checks.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/primitive/attend_block.hpp"

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

/// 2 KV heads of 40 rows of 8 floats, head by head.
struct rows_of_floats {
  std::vector<float> data = std::vector<float>(2 * 40 * 8, .5f);
  rows at{.base = reinterpret_cast<std::byte const*>(data.data()),
          .type = element_type::f32,
          .heads = 2,
          .tokens = 40,
          .head_dim = 8,
          .head_stride = 40 * 8 * 4,
          .token_stride = 8 * 4,
          .dim_stride = 4};
};

TEST_CASE("rows may lie in any order, and no two in one place") {
  rows_of_floats const of;
  std::vector<std::int32_t> const table{3, 1, 0};
  rows token_major = of.at;
  token_major.head_stride = 8 * 4;
  token_major.token_stride = 2 * 8 * 4;
  rows paged = of.at;
  paged.pages = table.data();
  paged.page_size = 16;
  paged.head_stride = 16 * 8 * 4;
  paged.page_stride = 2 * 16 * 8 * 4;
  rows pages_within_heads = paged;
  pages_within_heads.page_stride = 16 * 8 * 4;
  pages_within_heads.head_stride = 4 * 16 * 8 * 4;
  for (rows const& good : {of.at, token_major, paged, pages_within_heads}) CHECK_NOTHROW(check_strides(good, "keys", 3));

  auto const refused = [](rows bad, auto change, char const* why) {
    change(bad);
    CHECK_THROWS_WITH(check_strides(bad, "keys", 3), ContainsSubstring("keys") && ContainsSubstring(why));
  };
  refused(
      of.at, [](rows& r) { r.token_stride = 0; }, "of layer 3: byte_strides::token is 0 bytes; it must be at least 32");
  refused(
      of.at, [](rows& r) { r.dim_stride = 1; }, "byte_strides::dim is 1 bytes");
  refused(
      of.at, [](rows& r) { r.head_stride = r.token_stride; }, "it must be at least");
  refused(
      of.at, [](rows& r) { r.head_stride = 20 * 8 * 4; }, "byte_strides::head is 640 bytes; it must be at least 1280");
  refused(
      token_major, [](rows& r) { r.token_stride = 8 * 4; }, "it must be at least");
  refused(
      paged, [](rows& r) { r.page_stride = 16 * 8 * 4; }, "it must be at least");
  refused(
      paged, [](rows& r) { r.page_size = 0; }, "pages of 0 tokens; set paged_view::page_size");
  rows forgotten = paged;
  forgotten.pages = nullptr;
  CHECK_THROWS_AS(check_strides(forgotten, "keys"), unsupported);
}

TEST_CASE("queries of heads and tokens lie in either order, and none in another's place") {
  std::vector<float> const q(4 * 3 * 8, 1);
  auto const window = [&](std::int64_t token_stride, std::int64_t head_stride) {
    return query_window{q.data(), 4, 3, token_stride, head_stride, .25f};
  };
  CHECK_NOTHROW(check_query_strides(window(24, 8), 8, "q"));
  CHECK_NOTHROW(check_query_strides(window(8, 32), 8, "q"));
  CHECK_THROWS_WITH(check_query_strides(window(8, 8), 8, "q"),
                    ContainsSubstring("q.token_stride is 8 floats; it must be at least 24"));
  CHECK_THROWS_WITH(check_query_strides(window(8, 16), 8, "q"),
                    ContainsSubstring("q.head_stride is 16 floats; it must be at least 32"));
  CHECK_THROWS_WITH(check_query_strides(window(24, 7), 8, "q"), ContainsSubstring("q.head_stride is 7 floats"));
}

TEST_CASE("layers lie behind each other, or within their tokens, and never in another's rows") {
  rows const of = rows_of_floats().at;
  CHECK_NOTHROW(check_strides(of, "keys", 0, 3, 2 * 40 * 8 * 4));
  rows within = of;
  within.token_stride = 3 * 8 * 4;
  within.head_stride = 40 * 3 * 8 * 4;
  CHECK_NOTHROW(check_strides(within, "keys", 0, 3, 8 * 4));
  CHECK_THROWS_WITH(check_strides(of, "keys", 0, 3, 2 * 40 * 8), ContainsSubstring("byte_strides::layer is 640 bytes"));
}

TEST_CASE("a page that is missing is refused where its rows are read") {
  rows_of_floats const of;
  std::vector<std::int32_t> const table{3, -1, 0};
  rows paged = of.at;
  paged.pages = table.data();
  paged.page_size = 16;
  CHECK_NOTHROW(check_last_page(paged));  // the engine may have dropped the rows before
  CHECK_THROWS_WITH(check_pages(paged), ContainsSubstring("-1 at entry 1 of 3"));
  paged.tokens = 20;
  CHECK_THROWS_WITH(check_last_page(paged), ContainsSubstring("-1 at entry 1, the last tokens' page"));
  paged.tokens = 16;
  CHECK_NOTHROW(check_pages(paged));
}

TEST_CASE("a page table that names the last tokens' page twice is refused") {
  rows_of_floats const of;
  std::vector<std::int32_t> const table{3, 1, 0, 0};
  rows paged = of.at;
  paged.pages = table.data();
  paged.page_size = 16;
  CHECK_NOTHROW(check_last_page(of.at));
  CHECK_NOTHROW(check_last_page(paged));
  paged.tokens = 49;
  CHECK_THROWS_WITH(check_last_page(paged), ContainsSubstring("names page 0 at entries 2 and 3"));
  paged.tokens = 20;
  paged.page_table_stride = 2;
  CHECK_THROWS_WITH(check_last_page(paged), ContainsSubstring("names page 0 at entries 0 and 1"));
  paged.heads = 1;
  CHECK_NOTHROW(check_last_page(paged));
}

TEST_CASE("attention is refused what it can't read or write, before it does") {
  rows_of_floats const keys;
  rows_of_floats const values;
  std::vector<float> const q(2 * 4 * 8, 1);
  std::vector<range_list> const lists(2, range_list{{0, 40, reason::scored}});
  std::vector<float> to(2 * 4 * 8 + 64, -7);
  query_window const window{q.data(), 2, 4, 4 * 8, 8, .25f};
  selection const kept(scope::head, lists, 2);
  table<float> const out{to.data(), 2 * 4, 8, 8};
  host_exec exec;
  auto const refused = [&](char const* why, query_window const& queries, rows const& k, rows const& v, table<float> result,
                           attention_terms const& terms = {}) {
    CHECK_THROWS_WITH(attend(queries, k, v, kept, terms, result, {}, exec), ContainsSubstring(why));
    CHECK_THROWS_WITH(attend_block(queries, k, v, kept, terms, result, exec), ContainsSubstring(why));
    for (float const x : to) REQUIRE(x == -7);
  };
  refused("results of 8 channels", window, keys.at, values.at, {to.data(), 8, 4, 4});
  rows nowhere = values.at;
  nowhere.base = nullptr;
  refused("the pointer to the values is null", window, keys.at, nowhere, out);
  refused("the pointer to the output is null", window, keys.at, values.at, {nullptr, 8, 8, 8});
  refused("the pointer to the queries is null", {nullptr, 2, 4, 32, 8, .25f}, keys.at, values.at, out);
  refused("head_stride is 0 floats", {q.data(), 2, 4, 32, 0, .25f}, keys.at, values.at, out);
  refused("token_stride is 7 floats", {q.data(), 2, 4, 7, 8, .25f}, keys.at, values.at, out);
  refused("scale is not set", {q.data(), 2, 4, 32, 8}, keys.at, values.at, out);
  refused("a table of 4 x 8 for 8", window, keys.at, values.at, {to.data(), 4, 8, 8});
  rows overlapping = values.at;
  overlapping.head_stride = 8 * 4;
  refused("the values: byte_strides::", window, keys.at, overlapping, out);
  refused("a soft_cap of -50", window, keys.at, values.at, out, {.soft_cap = -50});
  refused("a window of -8", window, keys.at, values.at, out, {.window = -8});
  std::vector<range_list> const before(2, range_list{{-5, 20, reason::scored}});
  CHECK_THROWS_WITH(attend(window, keys.at, values.at, selection(scope::head, before, 2), {}, out, {}, exec),
                    ContainsSubstring("tokens -5 to 20 over 40 rows"));
  rows short_keys = keys.at;
  short_keys.tokens = 1;
  CHECK_THROWS_WITH(attend_block(window, short_keys, values.at, kept, {}, out, exec),
                    ContainsSubstring("2 tokens' queries over 1"));
  CHECK_THROWS_AS(kept.of({2}), invalid_value);
  CHECK_THROWS_AS(kept.of({-1}), invalid_value);
  std::vector<std::int32_t> const table{1, 0, 2, 3, 1};  // of 8 rows each; the last one was not written
  rows paged = keys.at;
  paged.pages = table.data();
  paged.page_size = 8;
  paged.page_stride = 8 * 8 * 4;
  refused("have page 1 at entries 0 and 4 of the page table", window, paged, values.at, out);
  range_list const window_of_ring{{24, 40}};  // what lies before was written over
  CHECK_NOTHROW(attend(window, paged, values.at, {scope::layer, {&window_of_ring, 1}, 2}, {}, out, {}, exec));
}

TEST_CASE("indices ascend and name tokens; keys and values are different rows") {
  rows_of_floats const keys;
  rows_of_floats const values;
  rows few = keys.at;
  few.tokens = 3;
  auto const refused = [&](std::vector<std::int32_t> const& indices) {
    few.indices = indices.data();
    CHECK_THROWS_AS(check_indices(few, 40), invalid_value);
  };
  refused({-1, 0, 1});
  refused({3, 2, 5});
  refused({3, 3, 5});
  refused({3, 5, 40});
  std::vector<std::int32_t> const right{0, 5, 39};
  few.indices = right.data();
  CHECK_NOTHROW(check_indices(few, 40));
  CHECK_THROWS_WITH(check_apart(keys.at, keys.at), ContainsSubstring("keys and values are the same rows"));
  CHECK_NOTHROW(check_apart(keys.at, values.at));
}

TEST_CASE("pages of keys do not lie on pages of values") {
  std::vector<float> const pool(6 * 2 * 16 * 8);
  std::vector<std::int32_t> const table{3, 1, 0};
  auto const at = [&](std::int64_t floats, std::int64_t page) {
    return rows{.base = reinterpret_cast<std::byte const*>(pool.data() + floats),
                .heads = 1,
                .tokens = 40,
                .head_dim = 8,
                .pages = table.data(),
                .page_size = 16,
                .page_stride = page * 4};
  };
  constexpr std::int64_t page = 16 * 8;
  CHECK_NOTHROW(check_pools_apart(at(0, 2 * page), at(page, 2 * page)));  // each page of both
  CHECK_NOTHROW(check_pools_apart(at(0, page), at(4 * page, page)));      // pages 0 to 3, then the values'
  CHECK_NOTHROW(check_pools_apart(at(4 * page, page), at(0, page)));
  CHECK_THROWS_WITH(check_pools_apart(at(0, page), at(page, page)),
                    ContainsSubstring("begin 512 bytes from its keys, within the pages of keys: byte_strides::page is 512"));
  CHECK_THROWS_AS(check_pools_apart(at(2 * page, page), at(0, page)), invalid_value);
  CHECK_NOTHROW(check_pools_apart(at(0, page), at(2 * page + 1, page)));
  std::vector<std::int32_t> const even{4, 2, 0};  // the odd pages are the values'
  rows keys = at(0, page);
  rows values = at(page, page);
  keys.pages = values.pages = even.data();
  CHECK_NOTHROW(check_pools_apart(keys, values));
}

TEST_CASE("the tokens of a step are attended to at once, by the step's own selection") {
  rows_of_floats const keys;
  rows_of_floats const values;
  std::vector<float> const queries(4 * 2 * 8, 1);
  std::vector<float> out(queries.size());
  range_list const all{{0, 40}};
  selection const of_four(scope::layer, {&all, 1}, 2, 4);
  query_window const window{queries.data(), 4, 2, 16, 8, .3f};
  host_exec exec;
  CHECK_NOTHROW(attend(window, keys.at, values.at, of_four, table<float>{out.data(), 8, 8, 8}, {}, exec));
  CHECK_THROWS_WITH(attend(window.token(0), keys.at, values.at, of_four, table<float>{out.data(), 2, 8, 8}, {}, exec),
                    ContainsSubstring("queries of 1 tokens, and a selection for a step of 4"));
}

/// One query head's attention over a KV head's rows.
void attend_head(std::int64_t head, selection const& kept, attention_terms const& terms) {
  rows_of_floats const keys;
  rows_of_floats const values;
  std::vector<float> const query(8, 1);
  std::vector<float> out(8);
  host_exec exec;
  attend(query_heads{query.data(), 1, 8, .3f}, keys.at.of({head, 1}), values.at.of({head, 1}), kept, terms,
         table<float>{out.data(), 1, 8, 8}, {}, exec);
}

TEST_CASE("a step's list lies within the window that its model has") {
  auto const read = [&](std::int32_t begin, std::int64_t window) {
    range_list const list{{begin, 40}};
    attend_head(0, {scope::layer, {&list, 1}, 1}, {.window = window});
  };
  CHECK_NOTHROW(read(36, 4));
  CHECK_NOTHROW(read(0, 0));
  CHECK_THROWS_WITH(read(35, 4), ContainsSubstring("reads token 35, and a window of 4 begins at 36"));
}

TEST_CASE("one head's rows are not attended with the lists of all") {
  std::vector<range_list> const lists{{{0, 4}}, {{4, 8}}};
  CHECK_NOTHROW(attend_head(1, {scope::head, std::span(lists).last(1), 2}, {}));
  CHECK_THROWS_WITH(attend_head(1, {scope::head, lists, 2}, {}), ContainsSubstring("2 lists for 1 KV heads"));
}

}  // namespace
}  // namespace kvpolicy
