// A row store against a map of rows: whatever is appended, dropped, cut and forked, what is there is what was put there.
#include "kvpolicy/store/row_store.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "conformance/rounds.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "kvpolicy/primitive/attend.hpp"
#include "kvpolicy/testing/random_cache.hpp"

namespace kvpolicy {
namespace {

using testing::random_source;

/// An engine's rows of a few tokens, in a layout of one's own: bytes that nobody else has.
class engine_rows {
 public:
  engine_rows(cache_shape const& shape, element_type type, std::int64_t tokens, std::int64_t stamp, bool by_token)
      : row_(bytes_of(type, shape.head_dim)), bytes_(static_cast<std::size_t>(shape.kv_heads * tokens * row_)) {
    rows_ = {.base = bytes_.data(),
             .type = type,
             .heads = shape.kv_heads,
             .tokens = tokens,
             .head_dim = shape.head_dim,
             .head_stride = by_token ? row_ : tokens * row_,
             .token_stride = by_token ? shape.kv_heads * row_ : row_,
             .dim_stride = size_of(type)};
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        auto const at = static_cast<std::size_t>(rows_.address({h}, {t}) - bytes_.data());
        for (std::int64_t i = 0; i < row_; ++i) {
          bytes_[at + static_cast<std::size_t>(i)] = static_cast<std::byte>(stamp * 131 + h * 31 + t * 7 + i);
        }
      }
    }
  }
  rows const& get() const noexcept { return rows_; }
  std::vector<std::byte> row(std::int64_t head, std::int64_t token) const {
    return {rows_.address({head}, {token}), rows_.address({head}, {token}) + row_};
  }

 private:
  std::int64_t row_;
  std::vector<std::byte> bytes_;
  rows rows_;
};

/// What a store should be.
struct naive_store {
  struct pair {
    std::vector<std::byte> key;
    std::vector<std::byte> value;
  };
  std::vector<std::int64_t> tokens;                 ///< `[layers]`
  std::vector<std::map<std::int64_t, pair>> heads;  ///< `[layers, kv_heads]`
};

struct both {
  row_store store;
  naive_store naive;
};

class random_stores {
 public:
  random_stores(std::uint64_t seed)
      : random_(seed),
        shape_(random_.shape(400)),
        values_(random_.between(0, 2) == 0 ? element_type::q8_0 : element_type::f16),
        arena_(block_bytes(), random_.between(20, 300)) {}

  void run(int operations) {
    add();
    for (int i = 0; i < operations; ++i) {
      switch (random_.between(0, 9)) {
        case 0:
          if (stores_.size() < 4) add();
          break;
        case 1:
          if (stores_.size() < 4) fork();
          break;
        case 2:
          if (stores_.size() > 1) stores_.erase(stores_.begin() + random_.between(0, std::ssize(stores_) - 1));
          break;
        case 3:
          cut();
          break;
        case 4:
        case 5:
        case 6:
          drop();
          break;
        default:
          append();
          break;
      }
      for (both const& b : stores_) check(b);
      if (stores_.empty()) REQUIRE(arena_.held() == 0);
    }
    stores_.clear();
    REQUIRE(arena_.held() == 0);
  }

 private:
  std::int64_t block_bytes() {
    shape_.type = random_.between(0, 1) == 0 ? element_type::f32 : element_type::bf16;
    shape_.head_dim = 32 * random_.between(1, 2);
    return row_store::block_bytes(shape_, values_);
  }
  both& any() { return stores_[static_cast<std::size_t>(random_.between(0, std::ssize(stores_) - 1))]; }
  std::map<std::int64_t, naive_store::pair>& head(naive_store& of, std::int64_t layer, std::int64_t h) const {
    return of.heads[static_cast<std::size_t>(layer * shape_.kv_heads + h)];
  }

  void add() {
    stores_.push_back({row_store(arena_, shape_, values_), {}});
    stores_.back().naive.tokens.resize(static_cast<std::size_t>(shape_.layers));
    stores_.back().naive.heads.resize(static_cast<std::size_t>(shape_.layers * shape_.kv_heads));
  }
  void fork() {
    both const& from = any();
    std::int64_t const tokens = random_.between(0, shape_.max_tokens);
    both made{from.store.fork(tokens), from.naive};
    truncate(made.naive, tokens);
    stores_.push_back(std::move(made));
  }
  void truncate(naive_store& of, std::int64_t tokens) const {
    for (std::int64_t& n : of.tokens) n = std::min(n, tokens);
    for (auto& rows : of.heads) rows.erase(rows.lower_bound(tokens), rows.end());
  }
  void cut() {
    both& b = any();
    std::int64_t const tokens = random_.between(0, 2) == 0 ? 0 : random_.between(0, b.store.released());
    b.store.truncate(tokens);
    truncate(b.naive, tokens);
  }

  /// The same number of tokens in every layer, or in the first ones alone.
  void append() {
    both& b = any();
    std::int64_t const count = random_.between(0, 1) == 0 ? 1 : random_.between(1, 150);
    std::int64_t const layers = random_.between(0, 4) == 0 ? random_.between(1, shape_.layers) : shape_.layers;
    for (std::int64_t l = 0; l < layers; ++l) {
      engine_rows const keys(shape_, shape_.type, count, ++stamp_, random_.between(0, 1) == 0);
      engine_rows const values(shape_, values_, count, ++stamp_, random_.between(0, 1) == 0);
      std::int64_t& n = b.naive.tokens[static_cast<std::size_t>(l)];
      bool const fits = n + count <= shape_.max_tokens;
      try {
        b.store.append({l}, keys.get(), values.get());
        REQUIRE(fits);
      } catch (invalid_value const&) {
        REQUIRE_FALSE(fits);
        return;
      } catch (error const& full) {
        REQUIRE_THAT(full.what(), Catch::Matchers::ContainsSubstring("memory is exhausted"));
        return;
      }
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        for (std::int64_t t = 0; t < count; ++t) head(b.naive, l, h)[n + t] = {keys.row(h, t), values.row(h, t)};
      }
      n += count;
    }
  }

  /// All but few, or few, of one layer's first tokens; head by head or alike.
  void drop() {
    both& b = any();
    std::int64_t const l = random_.between(0, shape_.layers - 1);
    std::int64_t const tokens = random_.between(0, b.store.tokens({l}));
    scope const how = random_.between(0, 1) == 0 ? scope::head : scope::layer;
    std::int64_t const one_in = random_.between(0, 1) == 0 ? 2 : 20;
    bool const most_go = random_.between(0, 1) == 0;
    std::vector<range_list> lists(how == scope::head ? static_cast<std::size_t>(shape_.kv_heads) : 1);
    for (range_list& list : lists) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        if ((random_.between(0, one_in) == 0) == most_go) kvpolicy::append(list, t, t + 1, reason::scored);
      }
    }
    selection const kept(how, lists, shape_.kv_heads);
    try {
      b.store.retain({l}, kept, tokens);
    } catch (error const& full) {  // shared rows, which are copied: dropped they are
      REQUIRE_THAT(full.what(), Catch::Matchers::ContainsSubstring("memory is exhausted"));
      for (both& other : stores_) {
        if (&other != &b) other.store.clear(), truncate(other.naive, 0);
      }
      b.store.retain({l}, kept, tokens);
    }
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      std::erase_if(head(b.naive, l, h), [&](auto const& row) {
        return row.first < tokens && std::ranges::none_of(kept.of({h}), [&](token_range const& r) {
                 return r.begin <= row.first && row.first < r.end;
               });
      });
    }
  }

  void check(both const& b) const {
    std::int64_t rows = 0;
    bool same = true;
    layer_table_view const view = b.store.view(shape_.max_tokens);
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      REQUIRE(b.store.tokens({l}) == b.naive.tokens[static_cast<std::size_t>(l)]);
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        auto const& expected = b.naive.heads[static_cast<std::size_t>(l * shape_.kv_heads + h)];
        REQUIRE(b.store.rows_of({l}, h) == std::ssize(expected));
        rows += std::ssize(expected);
        range_list there;
        b.store.list({l}, h, shape_.max_tokens, there);
        range_list listed;
        for (auto const& [token, row] : expected) kvpolicy::append(listed, token, token + 1, reason::open);
        REQUIRE(there == listed);
        for (auto const& [token, row] : expected) {
          auto const* const key = view.keys({l}).address({h}, {token});
          auto const* const value = view.values({l}).address({h}, {token});
          same =
              same && std::equal(row.key.begin(), row.key.end(), key) && std::equal(row.value.begin(), row.value.end(), value);
        }
      }
    }
    REQUIRE(same);
    REQUIRE(b.store.rows_held() == rows);
    REQUIRE(b.store.bytes_held() <= arena_.held() * arena_.block_bytes());
    if (b.store.whole())
      REQUIRE(std::ranges::all_of(b.naive.heads, [&](auto const& head) {
        return head.empty() || std::prev(head.end())->first + 1 == std::ssize(head);
      }));
  }

  random_source random_;
  cache_shape shape_;
  element_type values_;
  block_arena arena_;
  std::vector<both> stores_;
  std::int64_t stamp_ = 0;
};

TEST_CASE("random appends, drops, cuts and forks of stores on one arena leave in each what was put there", "[store]") {
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(kvpolicy_test::rounds_of(200)); ++seed) {
    CAPTURE(seed);
    random_stores(seed).run(60);
  }
}

TEST_CASE("a store that keeps few of many rows holds blocks for few, and fills gaps before it takes more", "[store]") {
  cache_shape const shape{.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 32, .max_tokens = 5000};
  block_arena arena(row_store::block_bytes(shape), 1000);
  row_store store(arena, shape);
  engine_rows const prompt(shape, shape.type, 4000, 1, true);
  store.append({0}, prompt.get(), prompt.get());
  CHECK(store.bytes_held() == 2 * 63 * arena.block_bytes());
  range_list few;
  for (std::int64_t t = 0; t < 4000; t += 10) append(few, t, t + 1, reason::scored);
  store.retain({0}, {scope::layer, {&few, 1}, 2}, 4000);
  CHECK(store.rows_held() == 800);
  CHECK(store.bytes_held() == 2 * 7 * arena.block_bytes());
  CHECK(arena.held() == 14);
  // One goes, one comes: as many blocks, however long.
  engine_rows const next(shape, shape.type, 1, 2, true);
  for (std::int64_t n = 4000; n < 4900; ++n) {
    store.append({0}, next.get(), next.get());
    append(few, n, n + 1, reason::recent);
    if (++few.front().begin == few.front().end) few.erase(few.begin());
    store.retain({0}, {scope::layer, {&few, 1}, 2}, n + 1);
    REQUIRE(arena.held() <= 14);
  }
}

TEST_CASE("a store refuses rows that are not its own kind, and an arena of other blocks", "[store]") {
  cache_shape const shape{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 32, .max_tokens = 100};
  block_arena arena(row_store::block_bytes(shape), 4);
  block_arena other(row_store::block_bytes(shape) + 1, 4);
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(row_store(other, shape), ContainsSubstring("64 rows of this cache have 8192"));
  row_store store(arena, shape);
  engine_rows const rows(shape, shape.type, 70, 1, true);
  engine_rows const floats(shape, element_type::f32, 70, 1, true);
  CHECK_THROWS_WITH(store.append({0}, floats.get(), rows.get()), ContainsSubstring("f32; this store takes"));
  engine_rows const many(shape, shape.type, 101, 1, true);
  CHECK_THROWS_WITH(store.append({0}, many.get(), many.get()), ContainsSubstring("was made for 100"));
  store.append({0}, rows.get(), rows.get());
  CHECK(arena.held() == 4);
  CHECK(store.released() == 0);
  CHECK_THROWS_WITH(store.append({1}, rows.get(), rows.get()), ContainsSubstring("memory is exhausted: 4 more blocks"));
  CHECK(store.tokens({1}) == 0);
  CHECK(arena.held() == 4);
}

TEST_CASE("a store refuses layers that there are not, rows that lie nowhere, and counts below 0; a view says what lacks",
          "[store]") {
  cache_shape const shape{.layers = 2, .q_heads = 2, .kv_heads = 2, .head_dim = 8, .max_tokens = 40, .type = element_type::f16};
  block_arena arena(row_store::block_bytes(shape, shape.type), 100);
  row_store store(arena, shape, shape.type);
  engine_rows const keys(shape, shape.type, 5, 1, true);
  engine_rows const values(shape, shape.type, 5, 2, true);
  for (std::int32_t const layer : {-1, 2}) {
    CHECK_THROWS_AS(store.append({layer}, keys.get(), values.get()), invalid_value);
    CHECK_THROWS_AS(store.retain({layer}, selection{}, 5), invalid_value);
  }
  auto const refused = [&](auto change) {
    rows bad = keys.get();
    change(bad);
    CHECK_THROWS_AS(store.append({0}, bad, values.get()), invalid_value);
  };
  refused([](rows& r) { r.base = nullptr; });
  refused([](rows& r) { r.token_stride = 0; });
  refused([](rows& r) { r.head_stride = 0; });
  rows fewer = keys.get();
  fewer.tokens = -3;
  CHECK_THROWS_AS(store.append({0}, fewer, fewer), invalid_value);
  CHECK_THROWS_AS(store.truncate(-3), invalid_value);
  CHECK_THROWS_AS(store.fork(-1), invalid_value);
  store.append({0}, keys.get(), values.get());
  CHECK(store.view(5).keys({0}).tokens == 5);
  CHECK(store.view(5).keys({1}).tokens == 0);  // a verb refuses the layer that was forgotten
  CHECK(store.fork(3).view(5).keys({0}).tokens == 3);
  store.truncate(2);
  CHECK(store.view(5).keys({0}).tokens == 2);
  CHECK_THROWS_AS(store.tokens({2}), invalid_value);
  CHECK_THROWS_AS(store.rows_of({1}, 2), invalid_value);
  CHECK(store.row({0}, 1, 30) == nullptr);
  range_list list;
  CHECK_THROWS_WITH(store.list({0}, 3, 2, list), Catch::Matchers::ContainsSubstring("KV head 3; this store has 0 to 1"));
  range_list const one{{0, 2}};
  CHECK_THROWS_AS(store.retain({0}, {scope::layer, {&one, 1}, 4}, 2), invalid_value);
}

TEST_CASE("saved rows are read by a layer of the same kind, and without rows", "[store]") {
  cache_shape shape{.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 8, .max_tokens = 40, .type = element_type::f16};
  block_arena arena(row_store::block_bytes(shape), 100);
  row_store store(arena, shape);
  engine_rows const rows(shape, shape.type, 5, 1, true);
  store.append({0}, rows.get(), rows.get());
  std::vector<std::byte> saved;
  state_writer to(saved);
  store.save({0}, to);
  auto const load = [&](row_store& into) {
    state_reader a(saved);
    into.load({0}, a);
  };
  row_store same(arena, shape);
  load(same);
  CHECK(same.rows_of({0}, 1) == 5);
  CHECK_THROWS_WITH(load(same), Catch::Matchers::ContainsSubstring("call clear() before load()"));
  cache_shape deeper = shape;
  deeper.layers = 2;
  row_store two(arena, deeper);
  state_reader of_first(saved);
  CHECK_THROWS_WITH(two.load({1}, of_first), Catch::Matchers::ContainsSubstring("rows of layer 0 for layer 1"));
  shape.type = element_type::bf16;
  row_store other(arena, shape);
  CHECK_THROWS_AS(load(other), invalid_value);
}

TEST_CASE("attention over rows that a store dropped, or that are elsewhere, is refused", "[store]") {
  cache_shape const shape{.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 8, .max_tokens = 40, .type = element_type::f32};
  block_arena arena(row_store::block_bytes(shape), 100);
  row_store store(arena, shape);
  engine_rows const rows(shape, shape.type, 20, 1, true);
  store.append({0}, rows.get(), rows.get());
  std::array<float, 16> queries{};
  std::array<float, 16> out{};
  host_exec exec;
  auto const read = [&](range_list const& first, range_list const& second) {
    std::array<range_list, 2> const lists{first, second};
    auto const view = store.view(20);
    attend(query_heads{queries.data(), 2, 8, 1}, view.keys({0}), view.values({0}), {scope::head, lists, 2},
           table<float>{out.data(), 2, 8, 8}, {}, exec);
  };
  read({{0, 20}}, {{0, 20}});
  std::array<range_list, 2> const kept{range_list{{0, 20}}, range_list{{0, 6}, {10, 20}}};
  store.retain({0}, {scope::head, kept, 2}, 20);
  read({{0, 20}}, {{0, 6}, {10, 20}});
  std::string const why = "the keys of KV head 1 have no page for some of tokens 0 to 19";
  CHECK_THROWS_WITH(read({{0, 20}}, {{0, 20}}), Catch::Matchers::StartsWith(why));
  store.evict({0}, 0, std::array{3});
  CHECK_THROWS_AS(read({{2, 5}}, {{0, 6}}), invalid_value);
}

TEST_CASE("a step on a store that still has rows of drafts that did not stay is refused", "[store]") {
  cache_shape const shape{.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 8, .max_tokens = 40, .type = element_type::f32};
  block_arena arena(row_store::block_bytes(shape), 100);
  row_store store(arena, shape);
  engine_rows const rows(shape, shape.type, 20, 1, true);
  engine_rows const one(shape, shape.type, 1, 1, true);
  host_exec exec;
  auto request = start(presets::streaming_llm{.tokens = 16}, shape);
  store.append({0}, rows.get(), rows.get());
  request.prefill(store.view(20), {0}, {}, exec);
  for (int i = 0; i < 3; ++i) store.append({0}, one.get(), one.get());
  request.choose(store.view(23), {0}, step_window{.tokens = 3}, exec);
  store.append({0}, one.get(), one.get());  // behind the first of the three
  CHECK_THROWS_WITH(request.choose(store.view(22), {0}, {}, exec),
                    Catch::Matchers::ContainsSubstring("the store has rows of 24 tokens in layer 0, and the step is on 22"));
  store.truncate(21);
  store.append({0}, one.get(), one.get());
  CHECK_NOTHROW(request.choose(store.view(22), {0}, {}, exec));
}

}  // namespace
}  // namespace kvpolicy
