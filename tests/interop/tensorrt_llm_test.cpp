#include "kvpolicy/interop/tensorrt_llm.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <set>

#include "interop/drawn_batch.hpp"

namespace kvpolicy_test {
namespace {

using Catch::Matchers::ContainsSubstring;

/// Attention over a sequence's block offsets `[2, M]`: key i of the first `length` is in block offsets[0, i / N] of the pool
/// `[blocks, H, N, D]`, its value in block offsets[1, i / N].
std::vector<double> over_blocks(drawn_batch const& batch, std::int64_t s, std::int64_t q, std::int32_t const* offsets,
                                std::int64_t most, std::int64_t length, std::int64_t block_stride, std::int64_t h) {
  std::int64_t const D = batch.shape().head_dim;
  std::int64_t const N = batch.page_size();
  std::int64_t const layer = batch.layer() * batch.cache().pages_in_all() * batch.shape().kv_heads * N * D;
  auto const at = [&](std::int64_t v, std::int64_t i, std::int64_t d) {
    return batch.cache().get(v, layer + offsets[v * most + i / N] * block_stride + h * N * D + i % N * D + d);
  };
  return attention(
      batch.query(s, q), D, drawn_batch::scale, length, [&](std::int64_t i, std::int64_t d) { return at(0, i, d); },
      [&](std::int64_t i, std::int64_t d) { return at(1, i, d); });
}

void drive_offsets(head_rows heads, bool by_head) {
  drawn_batch const batch(engine::tensorrt_llm, granule::pages_and_a_part, by_head);
  cache_shape const& shape = batch.shape();
  std::int64_t const N = batch.page_size();
  bool const folded = heads == head_rows::folded;
  std::int64_t const of_sequence = folded ? shape.kv_heads : 1;
  std::int64_t const rows_in_all = batch.cache().sequences() * of_sequence;
  std::int64_t const most = (shape.max_tokens + N - 1) / N;
  std::int64_t const block_stride = N * shape.head_dim * (folded ? 1 : shape.kv_heads);
  table_entries const how = entries_of(batch.cache().view_in_pages(0, 0), entry_size::page, heads);
  RC_ASSERT(how.value_stride == block_stride * size_of(shape.type));
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(rows_in_all * 2 * most), -7);
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(rows_in_all), -7);
  tensorrt_llm::emit(batch.sequences(false, true), how, most, offsets, lengths);
  for (std::int64_t s = 0; s < batch.cache().sequences(); ++s) {
    auto const row_of = [&](std::int64_t h) { return s * of_sequence + (folded ? h : 0); };
    for (std::int64_t h = 0; h < of_sequence; ++h) {
      std::int64_t const length = lengths[static_cast<std::size_t>(row_of(h))];
      std::int64_t const blocks = (length + N - 1) / N;
      for (std::int64_t v = 0; v < 2; ++v) {
        auto const own = v == 0 ? batch.cache().pages(s) : batch.cache().value_pages(s);
        std::span const row(offsets.data() + (row_of(h) * 2 + v) * most, static_cast<std::size_t>(blocks));
        auto const entry_of = [&](std::int64_t t) {
          std::int64_t const block = own[static_cast<std::size_t>(t / N)];
          return folded ? block * shape.kv_heads + h : block;
        };
        RC_ASSERT(tokens_of_row(row, length - (blocks - 1) * N, N, batch.tokens(s), entry_of) == tokens_of(batch.list(s, h)));
      }
    }
    std::int64_t const group = shape.q_heads / shape.kv_heads;
    expect_same_attention(batch, s, [&](std::int64_t q) {
      std::int64_t const r = row_of(q / group);
      return over_blocks(batch, s, q, offsets.data() + r * 2 * most, most, lengths[static_cast<std::size_t>(r)], block_stride,
                         folded ? 0 : q / group);
    });
  }
}

/// As the generation phase reads them: head h of sequence s reads the set of blocks indices[h, offsets[s]..offsets[s + 1]),
/// in order; its length is whole blocks, but for the sequence's last one.
void drive_indices(bool by_head) {
  drawn_batch const batch(engine::tensorrt_llm, granule::pages, by_head);
  cache_shape const& shape = batch.shape();
  std::int64_t const N = batch.page_size();
  std::int64_t const columns = batch.cache().sequences() * ((shape.max_tokens + N - 1) / N);
  std::vector<std::int32_t> indices(static_cast<std::size_t>(shape.kv_heads * columns), -7);
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(batch.cache().sequences() + 1), -7);
  std::int64_t const used = tensorrt_llm::sparse_indices(batch.sequences(false, true), N,
                                                         {indices.data(), shape.kv_heads, columns, columns}, offsets);
  RC_ASSERT(offsets.front() == 0);
  RC_ASSERT(offsets.back() == used);
  std::int64_t const group = shape.q_heads / shape.kv_heads;
  for (std::int64_t s = 0; s < batch.cache().sequences(); ++s) {
    std::int64_t const n = batch.tokens(s);
    std::vector<std::vector<std::int32_t>> gathered;  // of each head, as the engine makes them: `[2, blocks]`
    std::vector<std::int64_t> length;
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      std::int32_t const* const row = indices.data() + h * columns;
      RC_ASSERT(std::is_sorted(row + offsets[static_cast<std::size_t>(s)], row + offsets[static_cast<std::size_t>(s + 1)]));
      std::set<std::int64_t> const blocks(row + offsets[static_cast<std::size_t>(s)],
                                          row + offsets[static_cast<std::size_t>(s + 1)]);
      gathered.emplace_back();
      for (auto const own : {batch.cache().pages(s), batch.cache().value_pages(s)}) {
        for (std::int64_t const b : blocks) gathered.back().push_back(own[static_cast<std::size_t>(b)]);
      }
      std::int64_t const whole = static_cast<std::int64_t>(blocks.size()) * N;
      length.push_back(blocks.contains((n - 1) / N) ? whole - (N - 1 - (n - 1) % N) : whole);
      if (blocks.empty()) length.back() = 0;
      std::vector<std::int64_t> tokens;
      for (std::int64_t const b : blocks) {
        for (std::int64_t t = b * N; t < std::min(n, (b + 1) * N); ++t) tokens.push_back(t);
      }
      RC_ASSERT(tokens == tokens_of(batch.list(s, h)));
    }
    expect_same_attention(batch, s, [&](std::int64_t q) {
      auto const h = static_cast<std::size_t>(q / group);
      return over_blocks(batch, s, q, gathered[h].data(), std::ssize(gathered[h]) / 2, length[h],
                         shape.kv_heads * N * shape.head_dim, q / group);
    });
  }
}

TEST_CASE("TensorRT-LLM's block offsets drive paged attention to the library's output", "[interop]") {
  REQUIRE(rc::check("a row for all heads", [] { drive_offsets(head_rows::shared, false); }));
  REQUIRE(rc::check("a row for each head", [] { drive_offsets(head_rows::folded, true); }));
}

TEST_CASE("TensorRT-LLM's sparse indices drive paged attention to the library's output", "[interop]") {
  REQUIRE(rc::check("a list for all heads", [] { drive_indices(false); }));
  REQUIRE(rc::check("a list for each head", [] { drive_indices(true); }));
}

TEST_CASE("TensorRT-LLM's emitters refuse before they write", "[interop]") {
  random_source random(8);
  cache_shape const shape{1, 2, 2, 8, 64, element_type::f16};
  engine_batch const cache(engine::tensorrt_llm, shape, 1, 8, random);
  std::vector<range_list> const part{{{0, 12, reason::scored}}};
  std::vector<range_list> const uneven{{{0, 16, reason::scored}}, {}};
  std::vector<std::int32_t> out(64, -7), few(2, -7);
  paged_sequence one{selection(scope::layer, part, 2), 64, cache.pages(0)};
  table_entries const how = entries_of(cache.view_in_pages(0, 64));
  auto const emit = [&](std::int64_t most) { tensorrt_llm::emit(std::span(&one, 1), how, most, out, few); };
  auto const indices = [&](std::int64_t columns) {
    return tensorrt_llm::sparse_indices(std::span(&one, 1), 8, {out.data(), 2, columns, columns}, few);
  };
  REQUIRE_THROWS_WITH(emit(8), ContainsSubstring("without value_pages"));
  one.value_pages = cache.value_pages(0);
  REQUIRE_THROWS_WITH(emit(1), ContainsSubstring("room for 1"));
  REQUIRE_THROWS_WITH(emit(33), ContainsSubstring("1 x 2 x 33"));
  REQUIRE_THROWS_WITH(indices(8), ContainsSubstring("tokens 8..12 of 64 cover only a part of a block"));
  one.tokens = 12;  // now the sequence ends there
  REQUIRE_THROWS_WITH(indices(1), ContainsSubstring("room for 1"));
  one.kept = selection(scope::head, uneven, 2);
  one.tokens = 64;
  REQUIRE_THROWS_WITH(indices(8), ContainsSubstring("reads nothing beside one that reads 2"));
  REQUIRE(out == std::vector<std::int32_t>(64, -7));
  REQUIRE(few == std::vector<std::int32_t>(2, -7));
  REQUIRE_THROWS_WITH(tensorrt_llm::view(shape, 12, nullptr), ContainsSubstring("powers of two"));
}

}  // namespace
}  // namespace kvpolicy_test
