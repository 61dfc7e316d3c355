#include "kvpolicy/interop/flashinfer.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "interop/drawn_batch.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

using Catch::Matchers::ContainsSubstring;

/// The tensors that FlashInfer is given: where K and V begin and their strides, in elements.
struct paged_kv {
  std::int64_t keys = 0;
  std::int64_t values = 0;
  std::int64_t stride_page = 0;
  std::int64_t stride_n = 0;
  std::int64_t stride_h = 0;
  std::int64_t page_size = 0;
};

struct layout_kind {
  bool nhd = false;
  bool packed = false;
};
layout_kind layout_of(engine which) {
  return {which == engine::flashinfer_nhd || which == engine::flashinfer_nhd_packed,
          which == engine::flashinfer_nhd_packed || which == engine::flashinfer_hnd_packed};
}

/// By hand, from `[P, N, H, D]`, `[P, H, N, D]` and `[P, 2, ...]`.
paged_kv tensors(drawn_batch const& batch, engine which, entry_size size, head_rows heads) {
  auto const [nhd, packed] = layout_of(which);
  std::int64_t const H = batch.shape().kv_heads;
  std::int64_t const D = batch.shape().head_dim;
  std::int64_t const N = batch.page_size();
  std::int64_t const whole = N * H * D * (packed ? 2 : 1);
  paged_kv made{.stride_page = whole, .stride_n = nhd ? H * D : D, .stride_h = nhd ? D : N * D, .page_size = N};
  made.keys = batch.layer() * batch.cache().pages_in_all() * whole;
  made.values = made.keys + (packed ? N * H * D : 0);
  if (size == entry_size::page && heads == head_rows::folded) made.stride_page = nhd ? D : N * D;
  if (size == entry_size::token) {
    made.stride_page = nhd && heads == head_rows::shared ? H * D : D;
    made.page_size = 1;
  }
  return made;
}

struct arrays {
  std::vector<std::int32_t> indptr, indices, last_page_len;
  flashinfer::page_arrays spans() { return {indptr, indices, last_page_len}; }
};

void drive(engine which, entry_size size, head_rows heads, granule of, bool by_head) {
  drawn_batch const batch(which, of, by_head);
  cache_shape const& shape = batch.shape();
  std::int64_t const sequences = batch.cache().sequences();
  std::vector<paged_sequence> const given = batch.sequences();
  table_entries const how = entries_of(batch.cache().view_in_pages(0, 0), size, heads);
  paged_kv const kv = tensors(batch, which, size, heads);
  RC_ASSERT(how.key_stride == kv.stride_page * size_of(shape.type));
  RC_ASSERT(how.value_stride == how.key_stride);
  std::int64_t const of_sequence = heads == head_rows::folded ? shape.kv_heads : 1;
  auto const rows_in_all = static_cast<std::size_t>(sequences * of_sequence);
  arrays made{std::vector<std::int32_t>(rows_in_all + 1, -7), std::vector<std::int32_t>(4096, -7),
              std::vector<std::int32_t>(rows_in_all, -7)};
  std::int64_t const nnz = flashinfer::emit(given, how, made.spans());
  arrays planned{std::vector<std::int32_t>(rows_in_all + 1), {}, std::vector<std::int32_t>(rows_in_all)};
  RC_ASSERT(flashinfer::page_counts(given, how, planned.indptr, planned.last_page_len) == nnz);
  RC_ASSERT(planned.indptr == made.indptr);
  RC_ASSERT(planned.last_page_len == made.last_page_len);
  RC_ASSERT(made.indptr[0] == 0);
  RC_ASSERT(made.indptr[rows_in_all] == nnz);
  RC_ASSERT(made.indices[static_cast<std::size_t>(nnz)] == -7);

  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t h = 0; h < of_sequence; ++h) {
      auto const r = static_cast<std::size_t>(s * of_sequence + h);
      std::span const row(made.indices.data() + made.indptr[r], made.indices.data() + made.indptr[r + 1]);
      std::int32_t const last = made.last_page_len[r];
      RC_ASSERT((row.empty() ? last == 0 : last >= 1 && last <= kv.page_size));
      // Back to the list: an entry times the page stride is where the documents say that head's first row is.
      auto const entry_of = [&](std::int64_t t) {
        std::int64_t const page = batch.cache().pages(s)[static_cast<std::size_t>(t / batch.page_size())];
        paged_kv const plain = tensors(batch, which, entry_size::page, head_rows::shared);
        return (page * plain.stride_page + h * plain.stride_h + t % batch.page_size() * plain.stride_n) / kv.stride_page;
      };
      RC_ASSERT(tokens_of_row(row, last, kv.page_size, batch.tokens(s), entry_of) == tokens_of(batch.list(s, h)));
    }
    std::int64_t const group = shape.q_heads / shape.kv_heads;
    expect_same_attention(batch, s, [&](std::int64_t q) {
      // FlashInfer's decode: row r's pages are indices[indptr[r]..indptr[r + 1]), the last holds last_page_len[r] tokens.
      std::int64_t const head = q / group;
      auto const r = static_cast<std::size_t>(heads == head_rows::folded ? s * shape.kv_heads + head : s);
      std::int64_t const h = heads == head_rows::folded ? 0 : head;
      std::int64_t const pages = made.indptr[r + 1] - made.indptr[r];
      std::int64_t const length = pages == 0 ? 0 : (pages - 1) * kv.page_size + made.last_page_len[r];
      auto const row = [&](std::int64_t i) {
        std::int64_t const page = made.indices[static_cast<std::size_t>(made.indptr[r] + i / kv.page_size)];
        return page * kv.stride_page + i % kv.page_size * kv.stride_n + h * kv.stride_h;
      };
      return attention(
          batch.query(s, q), shape.head_dim, drawn_batch::scale, length,
          [&](std::int64_t i, std::int64_t d) { return batch.cache().get(0, kv.keys + row(i) + d); },
          [&](std::int64_t i, std::int64_t d) { return batch.cache().get(1, kv.values + row(i) + d); });
    });
  }
}

constexpr std::array layouts_of_flashinfer{engine::flashinfer_nhd, engine::flashinfer_hnd, engine::flashinfer_nhd_packed,
                                           engine::flashinfer_hnd_packed};

TEST_CASE("FlashInfer's arrays drive paged attention to the library's output", "[interop]") {
  for (engine const which : layouts_of_flashinfer) {
    REQUIRE(rc::check("pages, heads together",
                      [=] { drive(which, entry_size::page, head_rows::shared, granule::pages_and_a_part, false); }));
    REQUIRE(rc::check("pages, a list for each head",
                      [=] { drive(which, entry_size::page, head_rows::folded, granule::pages_and_a_part, true); }));
    REQUIRE(rc::check("tokens, heads together",
                      [=] { drive(which, entry_size::token, head_rows::shared, granule::tokens, false); }));
    REQUIRE(rc::check("tokens, a list for each head",
                      [=] { drive(which, entry_size::token, head_rows::folded, granule::tokens, true); }));
    REQUIRE(rc::check("folded heads of one list",
                      [=] { drive(which, entry_size::page, head_rows::folded, granule::pages, false); }));
  }
}

TEST_CASE("below the budget a policy's table is the engine's own", "[interop]") {
  random_source random(5);
  cache_shape const shape{2, 4, 2, 16, 200, element_type::f16};
  engine_batch const cache(engine::flashinfer_hnd, shape, 1, 8, random);
  paged_view<> const view = cache.view_in_pages(0, 100);
  presets::quest const policy{.tokens = 160, .page = 8};
  auto state = start(policy, shape);
  host_exec exec;
  for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(cache.view_in_pages(0, 99), {l}, {}, exec);
  std::vector<float> const query = random.reals(4 * 16);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    selection const kept = state.choose(view, {l}, {{query.data(), 4, 16, .25f}}, exec);
    std::vector<std::int32_t> indptr(3), last(2), indices(40);
    std::vector<paged_sequence> const batch{{kept, 100, cache.pages(0)}};
    REQUIRE(flashinfer::emit(batch, entries_of(view, entry_size::page, head_rows::folded), {indptr, indices, last}) == 26);
    REQUIRE(indptr == std::vector<std::int32_t>{0, 13, 26});
    REQUIRE(last == std::vector<std::int32_t>{4, 4});
    for (std::size_t i = 0; i < 13; ++i) {
      REQUIRE(indices[i] == cache.pages(0)[i] * 2);
      REQUIRE(indices[13 + i] == cache.pages(0)[i] * 2 + 1);
    }
  }
}

TEST_CASE("FlashInfer's emitter refuses before it writes, and names the way out", "[interop]") {
  random_source random(6);
  cache_shape const shape{1, 2, 2, 8, 64, element_type::f32};
  engine_batch const cache(engine::flashinfer_nhd, shape, 2, 4, random);
  paged_view<> const view = cache.view_in_pages(0, 64);
  table_entries const pages = entries_of(view);
  std::vector<range_list> const whole{{{0, 8, reason::sink}}};
  std::vector<range_list> const part{{{1, 3, reason::scored}}};
  std::vector<range_list> const heads{{{0, 4, reason::sink}}, {{0, 8, reason::sink}}};
  std::vector<std::int32_t> indptr(3, -7), last(2, -7), indices(8, -7);
  paged_sequence const good{selection(scope::layer, whole, 2), 64, cache.pages(0)};
  auto const refused = [&](paged_sequence const& second, table_entries const& how, char const* why) {
    std::vector<paged_sequence> const batch{good, second};
    REQUIRE_THROWS_WITH(flashinfer::emit(batch, how, {indptr, indices, last}), ContainsSubstring(why));
    REQUIRE(indptr == std::vector<std::int32_t>(3, -7));
    REQUIRE(indices == std::vector<std::int32_t>(8, -7));
    REQUIRE(last == std::vector<std::int32_t>(2, -7));
  };
  paged_sequence second = good;
  second.kept = selection(scope::layer, part, 2);
  refused(second, pages, "entry_size::token");
  second.kept = selection(scope::head, heads, 2);
  refused(second, pages, "head_rows::folded");
  second = good;
  second.tokens = 5;
  refused(second, pages, "names token 7, but the sequence has 5 tokens");
  second = good;
  second.pages = cache.pages(0).first(1);
  refused(second, pages, "past the end of a page table of 1");
  second = good;
  second.value_pages = cache.value_pages(0);
  refused(second, pages, "FlashInfer has one");
  std::vector<std::int32_t> const far(16, 900000000);
  second = good;
  second.pages = far;
  table_entries const folded = entries_of(view, entry_size::page, head_rows::folded);
  std::vector<std::int32_t> more_indptr(5), more_last(4);
  std::vector<paged_sequence> const batch{good, second};
  REQUIRE_THROWS_WITH(flashinfer::emit(batch, folded, {more_indptr, indices, more_last}), ContainsSubstring("7200000000"));
  std::vector<paged_sequence> const three{good, good, good};
  REQUIRE_THROWS_WITH(flashinfer::emit(three, pages, {indptr, indices, last}), ContainsSubstring("they have 4 and 3"));
  std::vector<paged_sequence> const two{good, good};
  REQUIRE_THROWS_WITH(flashinfer::emit(two, pages, {indptr, std::span(indices).first(3), last}),
                      ContainsSubstring("4 entries"));
}

}  // namespace
}  // namespace kvpolicy_test
