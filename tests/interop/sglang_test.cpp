#include "kvpolicy/interop/sglang.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "interop/drawn_batch.hpp"

namespace kvpolicy_test {
namespace {

using Catch::Matchers::ContainsSubstring;

/// The backend reads the pool `[slots, H, D]` as `[pages, page_size, H, D]`; folded heads as pages of `[page_size, 1, D]` with
/// a page stride of D.
void drive(bool by_slot, head_rows heads, granule of, bool by_head) {
  drawn_batch const batch(engine::sglang, of, by_head);
  cache_shape const& shape = batch.shape();
  std::int64_t const H = shape.kv_heads;
  std::int64_t const D = shape.head_dim;
  std::int64_t const N = by_slot ? 1 : batch.page_size();
  bool const folded = heads == head_rows::folded;
  std::int64_t const page_stride = folded ? D : N * H * D;
  table_entries const how = sglang::entries_of(batch.cache().view_in_pages(0, 0), N, heads);
  RC_ASSERT(how.key_stride == page_stride * size_of(shape.type));
  std::int64_t const of_sequence = folded ? H : 1;
  std::int64_t const reqs = batch.cache().sequences() * of_sequence;
  std::int64_t const most = (shape.max_tokens + N - 1) / N;
  std::vector<std::int32_t> page_table(static_cast<std::size_t>(reqs * most), -7);
  std::vector<std::int32_t> cache_seqlens(static_cast<std::size_t>(reqs), -7);
  sglang::emit(batch.sequences(true), how, {page_table.data(), reqs, most, most}, cache_seqlens);
  std::int64_t const layer = batch.layer() * batch.cache().pages_in_all() * batch.page_size() * H * D;
  for (std::int64_t s = 0; s < batch.cache().sequences(); ++s) {
    auto const row_of = [&](std::int64_t h) { return s * of_sequence + (folded ? h : 0); };
    for (std::int64_t h = 0; h < of_sequence; ++h) {
      std::int64_t const length = cache_seqlens[static_cast<std::size_t>(row_of(h))];
      std::int64_t const pages = (length + N - 1) / N;
      auto const entry_of = [&](std::int64_t t) {
        std::int64_t const page = batch.cache().slots(s)[static_cast<std::size_t>(t)] / N;
        return folded ? page * N * H + h : page;
      };
      std::span const row(page_table.data() + row_of(h) * most, static_cast<std::size_t>(pages));
      RC_ASSERT(tokens_of_row(row, length - (pages - 1) * N, N, batch.tokens(s), entry_of) == tokens_of(batch.list(s, h)));
    }
    std::int64_t const group = shape.q_heads / H;
    expect_same_attention(batch, s, [&](std::int64_t q) {
      std::int64_t const r = row_of(q / group);
      std::int64_t const h = folded ? 0 : q / group;
      auto const at = [&](std::int64_t v, std::int64_t i, std::int64_t d) {
        std::int64_t const page = page_table[static_cast<std::size_t>(r * most + i / N)];
        return batch.cache().get(v, layer + page * page_stride + i % N * H * D + h * D + d);
      };
      return attention(
          batch.query(s, q), D, drawn_batch::scale, cache_seqlens[static_cast<std::size_t>(r)],
          [&](std::int64_t i, std::int64_t d) { return at(0, i, d); },
          [&](std::int64_t i, std::int64_t d) { return at(1, i, d); });
    });
  }
}

TEST_CASE("SGLang's page table drives paged attention to the library's output", "[interop]") {
  REQUIRE(rc::check("pages", [] { drive(false, head_rows::shared, granule::pages_and_a_part, false); }));
  REQUIRE(rc::check("pages, a list for each head", [] { drive(false, head_rows::folded, granule::pages_and_a_part, true); }));
  REQUIRE(rc::check("slots", [] { drive(true, head_rows::shared, granule::tokens, false); }));
  REQUIRE(rc::check("slots, a list for each head", [] { drive(true, head_rows::folded, granule::tokens, true); }));
}

TEST_CASE("slots that are not pages of the backend's size are refused", "[interop]") {
  cache_shape const shape{1, 2, 1, 8, 64, element_type::f16};
  std::vector<std::int32_t> const slots{8, 9, 10, 11, 21, 22, 23, 24};
  std::vector<range_list> const lists{{{0, 8, reason::scored}}};
  std::vector<paged_sequence> const batch{{selection(scope::layer, lists, 1), 8, slots}};
  std::vector<std::int32_t> pages(8), lengths(1);
  REQUIRE_THROWS_WITH(
      sglang::emit(batch, sglang::entries_of(sglang::view(shape, nullptr, nullptr), 4), {pages.data(), 1, 8, 8}, lengths),
      ContainsSubstring("token 4 is in slot 21"));
  sglang::emit(batch, sglang::entries_of(sglang::view(shape, nullptr, nullptr), 1), {pages.data(), 1, 8, 8}, lengths);
  REQUIRE(pages == slots);
  REQUIRE(lengths[0] == 8);
  REQUIRE_THROWS_WITH(sglang::entries_of(vllm::view(shape, 16, nullptr), 16), ContainsSubstring("not of slots"));
}

}  // namespace
}  // namespace kvpolicy_test
