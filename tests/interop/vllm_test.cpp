#include "kvpolicy/interop/vllm.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "interop/drawn_batch.hpp"

namespace kvpolicy_test {
namespace {

using Catch::Matchers::ContainsSubstring;

/// Element d of key (0) or value (1) row n of head h of a block, by hand from `[L, B, H, N, 2D]`, or from
/// `[B, H, D/x, N, x]` and `[B, H, D, N]`; `block_stride` in elements.
std::int64_t element(drawn_batch const& batch, engine which, std::int64_t v, std::int64_t block_stride, std::int64_t block,
                     std::int64_t h, std::int64_t n, std::int64_t d) {
  std::int64_t const D = batch.shape().head_dim;
  std::int64_t const N = batch.page_size();
  std::int64_t const layer = batch.layer() * batch.cache().pages_in_all() * batch.shape().kv_heads * N * D;
  if (which == engine::vllm) return 2 * layer + block * block_stride + h * 2 * N * D + n * 2 * D + v * D + d;
  std::int64_t const x = batch.cache().x();
  std::int64_t const head = layer + block * block_stride + h * N * D;
  return head + (v == 0 ? d / x * N * x + n * x + d % x : d * N + n);
}

void drive(engine which, head_rows heads, granule of, bool by_head) {
  drawn_batch const batch(which, of, by_head);
  cache_shape const& shape = batch.shape();
  std::int64_t const N = batch.page_size();
  std::int64_t const D = shape.head_dim;
  std::int64_t const packed = which == engine::vllm ? 2 : 1;
  bool const folded = heads == head_rows::folded;
  std::int64_t const block_stride = packed * N * D * (folded ? 1 : shape.kv_heads);
  table_entries const how = entries_of(batch.cache().view_in_pages(0, 0), entry_size::page, heads);
  RC_ASSERT(how.key_stride == block_stride * size_of(shape.type));
  std::int64_t const of_sequence = folded ? shape.kv_heads : 1;
  std::int64_t const reqs = batch.cache().sequences() * of_sequence;
  std::int64_t const max_blocks = (shape.max_tokens + N - 1) / N;
  std::vector<std::int32_t> block_table(static_cast<std::size_t>((reqs + 2) * max_blocks), -7);
  std::vector<std::int32_t> seq_lens(static_cast<std::size_t>(reqs + 2), -7);
  vllm::emit(batch.sequences(), how, {block_table.data(), reqs + 2, max_blocks, max_blocks}, seq_lens);
  RC_ASSERT(seq_lens[static_cast<std::size_t>(reqs)] == -7);
  for (std::int64_t s = 0; s < batch.cache().sequences(); ++s) {
    auto const row_of = [&](std::int64_t h) { return s * of_sequence + (folded ? h : 0); };
    auto const table_row = [&](std::int64_t r) {
      return std::span(block_table.data() + r * max_blocks, block_table.data() + (r + 1) * max_blocks);
    };
    for (std::int64_t h = 0; h < of_sequence; ++h) {
      std::int64_t const length = seq_lens[static_cast<std::size_t>(row_of(h))];
      std::int64_t const blocks = (length + N - 1) / N;
      auto const entry_of = [&](std::int64_t t) {
        std::int64_t const page = batch.cache().pages(s)[static_cast<std::size_t>(t / N)];
        return folded ? page * shape.kv_heads + h : page;
      };
      auto const row = table_row(row_of(h));
      RC_ASSERT(tokens_of_row(row.first(static_cast<std::size_t>(blocks)), length - (blocks - 1) * N, N, batch.tokens(s),
                              entry_of) == tokens_of(batch.list(s, h)));
      for (std::int32_t const rest : row.subspan(static_cast<std::size_t>(blocks))) RC_ASSERT(rest == -7);
    }
    std::int64_t const group = shape.q_heads / shape.kv_heads;
    expect_same_attention(batch, s, [&](std::int64_t q) {
      // Paged attention: key i < seq_lens[r] is in block block_table[r, i / N], slot i % N.
      std::int64_t const r = row_of(q / group);
      std::int64_t const h = folded ? 0 : q / group;
      auto const at = [&](std::int64_t v, std::int64_t i, std::int64_t d) {
        return batch.cache().get(
            v, element(batch, which, v, block_stride, table_row(r)[static_cast<std::size_t>(i / N)], h, i % N, d));
      };
      return attention(
          batch.query(s, q), D, drawn_batch::scale, seq_lens[static_cast<std::size_t>(r)],
          [&](std::int64_t i, std::int64_t d) { return at(0, i, d); },
          [&](std::int64_t i, std::int64_t d) { return at(1, i, d); });
    });
  }
}

TEST_CASE("vLLM's block table drives paged attention to the library's output", "[interop]") {
  for (engine const which : {engine::vllm, engine::vllm_x_packed}) {
    REQUIRE(rc::check("a table for all heads", [=] { drive(which, head_rows::shared, granule::pages_and_a_part, false); }));
    REQUIRE(rc::check("a list for each head", [=] { drive(which, head_rows::folded, granule::pages_and_a_part, true); }));
  }
}

TEST_CASE("vLLM's emitter refuses what its tables can't hold, before it writes", "[interop]") {
  random_source random(7);
  cache_shape const shape{1, 2, 2, 16, 64, element_type::f16};
  engine_batch const cache(engine::vllm, shape, 1, 16, random);
  std::vector<range_list> const lists{{{0, 48, reason::scored}}};
  std::vector<paged_sequence> const batch{{selection(scope::layer, lists, 2), 64, cache.pages(0)}};
  table_entries const how = entries_of(cache.view_in_pages(0, 64));
  std::vector<std::int32_t> entries(3, -7), lengths(1, -7);
  REQUIRE_THROWS_WITH(vllm::emit(batch, how, {entries.data(), 1, 2, 2}, lengths),
                      ContainsSubstring("3 entries; there is room for 2"));
  REQUIRE_THROWS_WITH(vllm::emit(batch, how, {entries.data(), 0, 3, 3}, lengths), ContainsSubstring("a table of 0 rows"));
  std::vector<paged_sequence> two{batch[0], batch[0]};
  std::vector<std::int32_t> wide(6, -7), both(2, -7);
  REQUIRE_THROWS_WITH(vllm::emit(two, how, {wide.data(), 2, 3}, both), ContainsSubstring("2 rows with row_stride 0"));
  two[1].tokens = 0;
  REQUIRE_THROWS_WITH(vllm::emit(two, how, {wide.data(), 2, 3, 3}, both), ContainsSubstring("set paged_sequence::tokens"));
  REQUIRE(wide == std::vector<std::int32_t>(6, -7));
  REQUIRE(entries == std::vector<std::int32_t>(3, -7));
  REQUIRE(lengths[0] == -7);
  engine_batch const old(engine::vllm_x_packed, shape, 1, 16, random);
  REQUIRE_THROWS_WITH(entries_of(old.view_in_pages(0, 64), entry_size::token), ContainsSubstring("runs of 8 channels"));
  REQUIRE_THROWS_WITH(vllm::x_packed_view(shape, 16, 5, nullptr, nullptr), ContainsSubstring("runs of 5 channels"));
  paged_view<> apart = cache.view_in_pages(0, 64);
  apart.value_strides.head *= 2;
  REQUIRE_THROWS_WITH(entries_of(apart, entry_size::page, head_rows::folded),
                      ContainsSubstring("keys and values lie differently"));
}

}  // namespace
}  // namespace kvpolicy_test
