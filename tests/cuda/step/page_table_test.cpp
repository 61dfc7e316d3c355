#include "kvpolicy/gpu/step/page_table.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "conformance/engine_batch.hpp"
#include "cuda/batch_cache.hpp"
#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

using Catch::Matchers::ContainsSubstring;
using numbers = shared_vector<std::int32_t>;

numbers filled(std::int64_t size) { return numbers(static_cast<std::size_t>(size), -7); }

/// Random lists as a step leaves them on the device, and the same as selections.
struct drawn_lists {
  cache_shape shape;
  std::int64_t sequences = 1;
  numbers units, named, tails, tokens;
  std::vector<std::vector<range_list>> lists;
  gpu::token_lists device_lists;

  drawn_lists(cache_shape const& s, std::int64_t count, std::int64_t unit, bool by_head, bool whole_tail, random_source& random)
      : shape(s), sequences(count) {
    std::int64_t const heads = by_head ? shape.kv_heads : 1;
    std::int64_t const stride = shape.max_tokens / unit + 1;
    units = filled(sequences * heads * stride);
    named = filled(sequences * heads);
    tails = filled(sequences);
    tokens = filled(sequences);
    for (std::int64_t q = 0; q < sequences; ++q) {
      auto const row = static_cast<std::size_t>(q);
      std::int64_t const n = random.one_in(4) ? 0 : random.one_in(4) ? 1 : random.between(1, shape.max_tokens);
      std::int64_t const tail = n == 0 ? 0 : random.between(0, n - 1) / (whole_tail ? unit : 1) * (whole_tail ? unit : 1);
      tokens[row] = static_cast<std::int32_t>(n);
      tails[row] = static_cast<std::int32_t>(tail);
      lists.emplace_back();
      // As many units in each head, as top-k gives.
      std::int64_t const taken = random.between(0, tail / unit);
      for (std::int64_t h = 0; h < heads; ++h) {
        range_list list;
        std::int64_t const at = (q * heads + h) * stride;
        std::int64_t written = 0;
        std::int64_t left = tail / unit;
        for (std::int64_t u = 0; u < tail / unit; ++u, --left) {
          if (random.between(1, left) > taken - written) continue;
          units[static_cast<std::size_t>(at + written++)] = static_cast<std::int32_t>(u);
          append(list, u * unit, (u + 1) * unit, reason::scored);
        }
        append(list, tail, n, reason::recent);
        named[static_cast<std::size_t>(q * heads + h)] = static_cast<std::int32_t>(written * unit);
        lists.back().push_back(list);
      }
    }
    device_lists.units = on_device(units);
    device_lists.stride = stride;
    device_lists.named = on_device(named);
    device_lists.tail = {on_device(tails), 0};
    device_lists.tokens = {on_device(tokens), 0};
    device_lists.lists = static_cast<std::int32_t>(heads);
    device_lists.unit_size = static_cast<std::int32_t>(unit);
  }

  std::vector<paged_sequence> selected(engine_batch const& cache, bool slots, bool values) const {
    std::vector<paged_sequence> made;
    for (std::int64_t q = 0; q < sequences; ++q) {
      auto const row = static_cast<std::size_t>(q);
      selection const kept(lists[row].size() > 1 ? scope::head : scope::layer, lists[row], shape.kv_heads);
      made.push_back({kept, tokens[row], slots ? cache.slots(q) : cache.pages(q)});
      if (values) made.back().value_pages = cache.value_pages(q);
    }
    return made;
  }
};

/// Every sequence's own table, row by row.
struct uploaded_tables {
  numbers pages, value_pages;
  gpu::own_tables tables;
  uploaded_tables(engine_batch const& cache, bool slots, bool values) {
    for (std::int64_t q = 0; q < cache.sequences(); ++q) {
      auto const mine = slots ? cache.slots(q) : cache.pages(q);
      pages.insert(pages.end(), mine.begin(), mine.end());
      auto const its = cache.value_pages(q);
      if (values) value_pages.insert(value_pages.end(), its.begin(), its.end());
    }
    tables.pages = on_device(pages);
    tables.stride = std::ssize(pages) / cache.sequences();
    if (values) tables.value_pages = on_device(value_pages);
  }
};

enum class format { flashinfer, block_table, slots, offsets, indices };

/// The device's arrays are the host emitter's, element by element.
void compare(format what, entry_size size, bool folded, random_source& random) {
  constexpr std::array engine_of{engine::flashinfer_nhd, engine::vllm, engine::sglang, engine::tensorrt_llm,
                                 engine::tensorrt_llm};
  std::int64_t const heads = random.between(1, 3);
  cache_shape const shape{
      .layers = 1, .q_heads = heads, .kv_heads = heads, .head_dim = 8, .max_tokens = random.between(1, 300)};
  std::int64_t const page = std::int64_t{1} << random.between(0, 3);
  std::int64_t const sequences = random.between(1, 3);
  engine_batch const cache(engine_of[static_cast<std::size_t>(what)], shape, sequences, page, random);
  bool const tokens = size == entry_size::token;
  bool const by_head = folded || (what == format::indices && random.one_in(2));
  drawn_lists const drawn(shape, sequences, tokens ? random.between(1, 3) : page * random.between(1, 3), by_head, !tokens,
                          random);
  head_rows const rows_are = folded ? head_rows::folded : head_rows::shared;
  paged_view<> const view = cache.view_in_pages(0, 0);
  table_entries how = what == format::slots ? sglang::entries_of(view, page, rows_are) : entries_of(view, size, rows_are);
  if (what == format::indices) how = {.page_size = page, .tokens = page, .kv_heads = heads, .rows = heads};
  bool const own_values = what == format::offsets;
  auto const batch = drawn.selected(cache, what == format::slots, own_values);
  uploaded_tables const own(cache, what == format::slots, own_values);
  std::int64_t const wanted = sequences * how.rows;
  std::int64_t const most = (shape.max_tokens + how.tokens - 1) / how.tokens;
  test_device device(static_cast<std::uint64_t>(random.between(1, 1000)));
  numbers misfits(1);
  auto const run = [&](gpu::own_tables const& tables, gpu::table_rows const& to) {
    device.send();
    gpu::launch_page_table(device, drawn.device_lists, how, tables, to, sequences, shape.max_tokens, cache.pages_in_all());
    device.wait();
    REQUIRE(misfits[0] == 0);
  };
  switch (what) {
    case format::flashinfer: {
      numbers indptr = filled(wanted + 1), want_last = filled(wanted), want = filled(wanted * most);
      flashinfer::emit(batch, how, {indptr, want, want_last});
      numbers last = filled(wanted), got = filled(wanted * most);
      run(own.tables, gpu::flashinfer_rows(how, on_device(indptr), on_device(got), on_device(last), on_device(misfits)));
      REQUIRE(got == want);
      REQUIRE(last == want_last);
      break;
    }
    case format::block_table:
    case format::slots: {
      numbers want = filled(wanted * most), got = want, want_lengths = filled(wanted), lengths = want_lengths;
      vllm::emit(batch, how, {want.data(), wanted, most, most}, want_lengths);
      run(own.tables, gpu::block_table_rows(how, on_device(got), most, on_device(lengths), on_device(misfits)));
      REQUIRE(got == want);
      REQUIRE(lengths == want_lengths);
      break;
    }
    case format::offsets: {
      numbers want = filled(wanted * 2 * most), got = want, want_lengths = filled(wanted), lengths = want_lengths;
      tensorrt_llm::emit(batch, how, most, want, want_lengths);
      run(own.tables, gpu::block_offset_rows(how, on_device(got), most, on_device(lengths), on_device(misfits)));
      REQUIRE(got == want);
      REQUIRE(lengths == want_lengths);
      break;
    }
    case format::indices: {
      std::int64_t const columns = sequences * most;
      numbers want = filled(heads * columns), got = want, offsets = filled(sequences + 1);
      tensorrt_llm::sparse_indices(batch, page, {want.data(), heads, columns, columns}, offsets);
      run({}, gpu::sparse_index_rows(on_device(offsets), on_device(got), columns, on_device(misfits)));
      REQUIRE(got == want);
      break;
    }
  }
}

TEST_CASE("the device writes the tables that the host writes", "[cuda]") {
  random_source random(301);
  for (int round = 0; round < 12; ++round) {
    INFO("round " << round);
    for (bool const folded : {false, true}) {
      compare(format::flashinfer, entry_size::page, folded, random);
      compare(format::flashinfer, entry_size::token, folded, random);
      compare(format::block_table, entry_size::page, folded, random);
      compare(format::slots, entry_size::page, folded, random);
      compare(format::offsets, entry_size::page, folded, random);
    }
    compare(format::indices, entry_size::page, false, random);
  }
}

TEST_CASE("what a table can't say is counted, and what has no room is not written", "[cuda]") {
  random_source random(302);
  cache_shape const shape{1, 1, 1, 8, 64, element_type::f16};
  engine_batch const cache(engine::vllm, shape, 1, 8, random);
  uploaded_tables const own(cache, false, false);
  table_entries const how = entries_of(cache.view_in_pages(0, 0));
  numbers units{0, 9, 2}, named{16}, tail{16}, tokens{33};
  gpu::token_lists lists{};
  lists.units = on_device(units);
  lists.stride = 3;
  lists.named = on_device(named);
  lists.tail = {on_device(tail), 0};
  lists.tokens = {on_device(tokens), 0};
  lists.unit_size = 8;
  numbers misfits(1), entries = filled(8), lengths = filled(1);
  auto const run = [&](std::int64_t most, gpu::own_tables const& tables) {
    test_device device;
    misfits[0] = 0;
    device.send();
    gpu::launch_page_table(device, lists, how, tables,
                           gpu::block_table_rows(how, on_device(entries), most, on_device(lengths), on_device(misfits)), 1, 64,
                           64);
    device.wait();
    return misfits[0];
  };
  units[1] = 1;
  REQUIRE(run(8, own.tables) == 0);
  REQUIRE(lengths[0] == 33);
  std::ranges::fill(entries, -7);
  REQUIRE(run(3, own.tables) == 1);
  REQUIRE(entries[3] == -7);
  tail[0] = 20;  // tokens 16..20 are missing in the middle: the third page is not whole
  REQUIRE(run(8, own.tables) > 0);
  tail[0] = INT32_MAX;
  named[0] = 12;  // 8..12, and no more: a part of page 1, which only lengths can say
  REQUIRE(run(8, own.tables) == 0);
  REQUIRE(lengths[0] == 12);
  REQUIRE(run(8, {}) == 1);
  numbers hostile{-1, 64, 3, 3, 3, 3, 3, 3};  // a page that is freed, and one behind the pool
  named[0] = 16;
  REQUIRE(run(8, {on_device(hostile), 8}) == 2);
  REQUIRE(entries[0] == 0);
  REQUIRE(entries[1] == 0);
  named[0] = 12;
  numbers indptr{0, 3}, last = filled(1);
  test_device device;
  misfits[0] = 0;
  device.send();
  gpu::launch_page_table(device, lists, how, own.tables,
                         gpu::flashinfer_rows(how, on_device(indptr), on_device(entries), on_device(last), on_device(misfits)),
                         1, 64, 64);
  device.wait();
  REQUIRE(misfits[0] == 1);  // two pages where plan() was told three
  table_entries slots = how;
  slots.by_slot = true;
  for (auto const& [first_of_page_1, faults] : {std::pair{48, 0}, std::pair{49, 1}}) {
    numbers of_tokens = filled(64);
    of_tokens[0] = 24;
    of_tokens[8] = first_of_page_1;
    misfits[0] = 0;
    device.send();
    gpu::launch_page_table(device, lists, slots, {on_device(of_tokens), 64},
                           gpu::block_table_rows(how, on_device(entries), 8, on_device(lengths), on_device(misfits)), 1, 64,
                           64);
    device.wait();
    REQUIRE(misfits[0] == faults);
    REQUIRE(entries[0] == 3);
    REQUIRE(entries[1] == 6);
  }
  lists.lists = 2;
  REQUIRE_THROWS_WITH(run(8, own.tables), ContainsSubstring("head_rows::folded"));
  lists.lists = 1;
  table_entries wide = how;
  wide.of_page = 1 << 26;
  REQUIRE_THROWS_WITH(gpu::launch_page_table(device, lists, wide, own.tables, {}, 1, 64, 64),
                      ContainsSubstring("no int32 table"));
}

static_assert(gpu::known_counts<presets::quest, test_device> && gpu::known_counts<presets::full, test_device> &&
              gpu::known_counts<presets::snapkv, test_device> && gpu::known_counts<presets::streaming_llm, test_device> &&
              gpu::known_counts<presets::infllm, test_device>);
static_assert(!gpu::known_counts<presets::chess, test_device> && !gpu::known_counts<presets::sentencekv, test_device>);

TEST_CASE("a decoder's lists become FlashInfer's indices, planned on the host from counts alone", "[cuda]") {
  random_source random(303);
  cache_shape const shape{1, 4, 2, 16, 120, element_type::f16};
  constexpr std::int64_t sequences = 2;
  constexpr std::int32_t page = 8;
  batch_cache cache(shape, sequences, page, page_layout::hnd, random, true);
  gpu::paged_batch const view = cache.view();
  gpu::paged_batch const host_view = cache.host_view();
  presets::quest const policy{.tokens = 40, .page = page};
  test_device device;
  prompt_exec exec;
  gpu::decoder<presets::quest, test_device> decoder(policy, shape, sequences, device);
  host_exec oracle;
  std::vector<request_of<presets::quest>> states;
  std::vector<std::int32_t> tokens{90, 17};
  for (std::int64_t s = 0; s < sequences; ++s) {
    states.push_back(start(policy, shape));
    std::int64_t const n = tokens[static_cast<std::size_t>(s)];
    for (std::int64_t t = 0; t < n; ++t) cache.write(s, t, random);
    device.send();
    decoder.prefill(s, view, n, {0}, {}, exec);
    gpu::sequence_view<gpu::paged_batch, host_memory> const one{host_view, shape, s, n};
    states.back().prefill(one, {0}, {}, oracle);
  }
  table_entries const how = entries_of(view.pool, entry_size::page, head_rows::folded);
  for (int step = 0; step < 12; ++step) {
    for (std::int64_t s = 0; s < sequences; ++s) cache.write(s, tokens[static_cast<std::size_t>(s)]++, random);
    decoder.plan(tokens);
    // FlashInfer's plan(): counts, before anything is chosen.
    numbers indptr(5), last = filled(4), misfits(1);
    for (std::int64_t r = 0; r < 4; ++r) {
      auto const at = static_cast<std::size_t>(r);
      indptr[at + 1] = indptr[at] + static_cast<std::int32_t>(gpu::divided_up(decoder.listed({0}, r / 2, {r % 2}), page));
    }
    shared_vector<float> queries(static_cast<std::size_t>(sequences * 4 * 16));
    for (float& x : queries) x = static_cast<float>(random.between(-2, 2));
    gpu::vector_rows heads{};
    heads.base = on_device(queries).data;
    heads.elements = std::ssize(queries);
    heads.sequence_stride = 4 * 16;
    heads.head_stride = 16;
    numbers got = filled(indptr[4]);
    device.send();
    gpu::token_lists const lists = decoder.choose(view, {0}, heads, .25f);
    gpu::launch_page_table(device, lists, how, {view.pages, view.table_stride},
                           gpu::flashinfer_rows(how, on_device(indptr), on_device(got), on_device(last), on_device(misfits)),
                           sequences, shape.max_tokens, 64);
    device.wait();
    REQUIRE(misfits[0] == 0);
    std::vector<paged_sequence> batch;
    for (std::int64_t s = 0; s < sequences; ++s) {
      std::int64_t const n = tokens[static_cast<std::size_t>(s)];
      gpu::sequence_view<gpu::paged_batch, host_memory> const one{host_view, shape, s, n};
      query_heads const query{queries.data() + s * 4 * 16, 4, 16, .25f};
      batch.push_back({states[static_cast<std::size_t>(s)].choose(one, {0}, {query}, oracle), n,
                       std::span(host_view.pages.data + s * view.table_stride, static_cast<std::size_t>(view.table_stride))});
    }
    numbers want_indptr(5), want_last(4), want = filled(indptr[4]);
    flashinfer::emit(batch, how, {want_indptr, want, want_last});
    REQUIRE(indptr == want_indptr);
    REQUIRE(last == want_last);
    REQUIRE(got == want);
  }
}

TEST_CASE("tables of rows that moved are those of rows that did not, elsewhere", "[cuda]") {
  random_source random(18);
  constexpr std::int64_t sequences = 3, rows = 5, page = 4;
  cache_shape const shape{.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 8, .max_tokens = 120};
  engine_batch const cache(engine::vllm, shape, sequences, page, random);
  table_entries const how = entries_of(cache.view_in_pages(0, 0), entry_size::page, head_rows::shared);
  constexpr std::int64_t most = 120 / page;
  for (int round = 0; round < 20; ++round) {
    drawn_lists const drawn(shape, sequences, page, false, true, random);
    uploaded_tables const own(cache, false, false);
    numbers row_of{4, -1, 1}, moved(static_cast<std::size_t>(rows * own.tables.stride), -1);
    for (std::size_t s = 0; s < row_of.size(); ++s) {
      if (row_of[s] < 0) continue;
      std::copy_n(own.pages.begin() + static_cast<std::int64_t>(s) * own.tables.stride, own.tables.stride,
                  moved.begin() + row_of[s] * own.tables.stride);
    }
    test_device device(static_cast<std::uint64_t>(random.between(1, 1000)));
    numbers misfits(1), here = filled(sequences * most), lengths = filled(sequences), there = filled(rows * most),
                        lengths_there = filled(rows);
    device.send();
    gpu::launch_page_table(device, drawn.device_lists, how, own.tables,
                           gpu::block_table_rows(how, on_device(here), most, on_device(lengths), on_device(misfits)), sequences,
                           shape.max_tokens, cache.pages_in_all());
    gpu::launch_page_table(device, drawn.device_lists, how, {on_device(moved), own.tables.stride},
                           gpu::block_table_rows(how, on_device(there), most, on_device(lengths_there), on_device(misfits)),
                           sequences, shape.max_tokens, cache.pages_in_all(), {on_device(row_of)});
    device.wait();
    numbers want = filled(rows * most), want_lengths = filled(rows);
    for (std::size_t s = 0; s < row_of.size(); ++s) {
      if (row_of[s] < 0) continue;
      std::copy_n(here.begin() + static_cast<std::int64_t>(s) * most, most, want.begin() + row_of[s] * most);
      want_lengths[static_cast<std::size_t>(row_of[s])] = lengths[s];
    }
    REQUIRE(misfits[0] == 0);
    REQUIRE(there == want);
    REQUIRE(lengths_there == want_lengths);
  }
}

}  // namespace
}  // namespace kvpolicy_test
