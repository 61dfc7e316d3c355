#include "kvpolicy/interop/table_entries.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

/// 3 KV heads of 8 channels of 16 bits, pages of 4.
paged_view<> pool_of(page_layout how) {
  cache_shape const shape{1, 6, 3, 8, 64, element_type::f16};
  byte_strides const strides = strides_of(how, shape, 4);
  return {.cache = shape, .key_strides = strides, .value_strides = strides, .page_size = 4};
}

TEST_CASE("entries of whole pages are the engine's own numbers", "[interop]") {
  for (page_layout const how : {page_layout::nhd, page_layout::hnd}) {
    table_entries const made = entries_of(pool_of(how));
    REQUIRE(made.of_page == 1);
    REQUIRE(made.of_head == 0);
    REQUIRE(made.rows == 1);
    REQUIRE(made.tokens == 4);
    REQUIRE(made.key_stride == 4 * 3 * 8 * 2);
  }
}

TEST_CASE("folded heads are page * H + h where pages are HND, page * N * H + h where they are NHD", "[interop]") {
  table_entries const hnd = entries_of(pool_of(page_layout::hnd), entry_size::page, head_rows::folded);
  REQUIRE(hnd.of_page == 3);
  REQUIRE(hnd.of_head == 1);
  REQUIRE(hnd.rows == 3);
  REQUIRE(hnd.key_stride == 4 * 8 * 2);
  table_entries const nhd = entries_of(pool_of(page_layout::nhd), entry_size::page, head_rows::folded);
  REQUIRE(nhd.of_page == 4 * 3);
  REQUIRE(nhd.of_head == 1);
  REQUIRE(nhd.key_stride == 8 * 2);
}

TEST_CASE("entries of one token count slots", "[interop]") {
  table_entries const made = entries_of(pool_of(page_layout::nhd), entry_size::token);
  REQUIRE(made.tokens == 1);
  REQUIRE(made.of_page == 4);
  REQUIRE(made.of_slot == 1);
  REQUIRE(made.key_stride == 3 * 8 * 2);
}

TEST_CASE("pools that no entry can name are refused", "[interop]") {
  paged_view<> pool = pool_of(page_layout::hnd);
  pool.key_strides.pack = 4;
  REQUIRE_THROWS_WITH(entries_of(pool, entry_size::token), ContainsSubstring("runs of 4 channels"));
  REQUIRE_NOTHROW(entries_of(pool));
  pool = pool_of(page_layout::hnd);
  pool.value_strides = strides_of(page_layout::nhd, pool.cache, 4);
  REQUIRE_THROWS_WITH(entries_of(pool, entry_size::page, head_rows::folded), ContainsSubstring("lie differently"));
  pool.page_size = 0;
  REQUIRE_THROWS_AS(entries_of(pool), invalid_value);
  pool = pool_of(page_layout::hnd);
  pool.key_strides.page = 0;
  REQUIRE_THROWS_WITH(entries_of(pool), ContainsSubstring("page stride"));
}

}  // namespace
}  // namespace kvpolicy
