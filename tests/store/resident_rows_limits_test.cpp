// Rows between a store and a tier where there is little room, or the tier fails.
#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstring>
#include <vector>

#include "kvpolicy/store/resident_rows.hpp"
#include "kvpolicy/tiers/coded.hpp"
#include "kvpolicy/tiers/resident_options.hpp"
#include "tiers/blocks.hpp"

using namespace kvpolicy_test;

namespace {

/// One head's sequence, all of which is in the tier.
struct short_sequence {
  static constexpr cache_shape shape{
      .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 4, .max_tokens = 200, .type = element_type::f32};
  fake_tier made;
  tiers::any_tier tier = lend(made);
  block_arena arena{row_store::block_bytes(shape), 4};
  row_store store{arena, shape};
  resident_rows resident;
  std::array<float, 4> row{};
  std::vector<range_list> kept{1};

  explicit short_sequence(tiers::resident_options options, fake_options how = {.most_polls = 0}, std::int32_t tokens = 16)
      : made(row_store::row_bytes(shape, shape.type), shape.max_tokens, how), resident(tier, store, options) {
    for (std::int32_t t = 0; t < tokens; ++t) append();
    kept[0] = {{0, tokens}};
    resident.put_away({0}, {scope::head, kept, 1}, tokens, std::array<std::int64_t, 1>{});
  }
  void append() {
    row.fill(static_cast<float>(store.tokens({0})));
    rows const one{.base = reinterpret_cast<std::byte const*>(row.data()),
                   .type = element_type::f32,
                   .heads = 1,
                   .tokens = 1,
                   .head_dim = 4,
                   .dim_stride = 4};
    store.append({0}, one, one);
  }
  selection step(range_list list) { return append(), again(std::move(list)); }
  selection again(range_list list) {
    kept[0] = std::move(list);
    return resident.ready({0}, {scope::head, kept, 1});
  }
  void prefetch(range_list list) {
    kept[0] = std::move(list);
    resident.prefetch({0}, {scope::head, kept, 1});
  }
  bool there(std::int32_t t) const { return store.row({0}, 0, t) != nullptr; }
  bool there(selection const& read) const {
    return std::ranges::all_of(read.of({0}), [&](token_range const& range) {
      for (std::int32_t t = range.begin; t < range.end; ++t) {
        float first = -1;
        if (!there(t)) return false;
        std::memcpy(&first, store.row({0}, 0, t), sizeof first);
        if (first != static_cast<float>(t)) return false;
      }
      return true;
    });
  }
};

}  // namespace

TEST_CASE("a selection that stays is read in the end") {
  short_sequence s({.wait = false}, {.most_polls = 3});
  selection read = s.step({{0, 4}});
  int tries = 0;
  for (; tries < 50 && read.of({0}) != range_list{{0, 4}}; ++tries) read = s.again({{0, 4}});
  CHECK(tries < 50);
  CHECK(s.there(read));
}

TEST_CASE("rows that come at once put out none that the step reads") {
  // Without limits 64 rows stay. A step that reads 60 is followed by one of 20, of which 10 are there.
  short_sequence s({.wait = false}, {.most_polls = 0}, 150);
  CHECK(s.there(s.step({{0, 30}})));
  CHECK(s.there(s.step({{0, 60}})));
  selection const read = s.step({{50, 60}, {80, 90}});
  CHECK(read.of({0}) == range_list{{50, 60}, {80, 90}});
  CHECK(s.there(read));
  short_sequence few({.slots = 9, .wait = false});
  few.step({{8, 9}});
  few.step({{0, 8}});
  CHECK_THROWS_WITH(few.step({{8, 9}, {10, 11}}), Catch::Matchers::ContainsSubstring("more than the 9 rows"));
}

TEST_CASE("what the next step reads comes while this one runs") {
  for (bool const told : {false, true}) {
    CAPTURE(told);
    short_sequence s({.slots = 8}, {.most_polls = 2});
    s.step({{8, 12}});
    CHECK_FALSE(s.there(0));
    if (told) s.prefetch({{0, 4}, {16, 17}});  // tokens behind the prompt are in memory
    CHECK_FALSE(s.there(0));                   // rows come in the next step, not in this one's attention
    for (int i = 0; i < 50; ++i) s.made.run();
    auto const before = s.resident.statistics();
    CHECK(s.there(s.step({{0, 4}, {16, 18}})));
    auto const now = s.resident.statistics() - before;
    CHECK(now.wanted == 4);
    CHECK(now.hits == (told ? 4 : 0));
    CHECK(now.bytes_fetched == 4 * s.made.block_bytes());
  }
  short_sequence s({.slots = 4});
  s.step({{0, 1}});
  CHECK_THROWS_WITH(s.prefetch({{0, 5}}), Catch::Matchers::ContainsSubstring("a head reads 5 rows"));
  s.prefetch({{4, 8}});
  s.prefetch({{0, 2}});  // the first get goes on
  CHECK(s.there(s.step({{0, 2}})));
  CHECK(s.there(s.step({{4, 8}})));
}

TEST_CASE("the rows that were read longest ago leave") {
  short_sequence s({.slots = 4});
  CHECK(s.there(s.step({{0, 2}})));
  CHECK(s.there(s.step({{2, 4}, {16, 18}})));  // tokens behind the prompt take no slot
  CHECK((s.there(0) && s.there(1) && s.there(16) && s.there(17)));
  CHECK(s.there(s.step({{0, 1}, {4, 5}})));
  CHECK((s.there(0) && s.there(4)));
  CHECK_FALSE(s.there(1));
}

TEST_CASE("without a number of slots, twice as many rows stay as a step reads, and 64 at least") {
  short_sequence s({});
  CHECK(s.there(s.step({{0, 1}})));
  CHECK(s.there(15));  // 16 are less than 64
}

TEST_CASE("a step that reads more than it may is refused, and the next ones are right") {
  short_sequence s({.slots = 8});
  CHECK_THROWS_AS(s.step({{0, 9}}), kvpolicy::invalid_value);
  CHECK(s.there(s.step({{6, 7}})));
  CHECK(s.there(s.step({{6, 7}, {8, 15}})));
}

TEST_CASE("a get that missed is an error of the step, and the next step reads on") {
  for (bool const wait : {true, false}) {
    CAPTURE(wait);
    short_sequence s({.slots = 4, .wait = wait}, {.most_polls = 0, .gets_missed_one_in = 3});
    std::int64_t lost = 0;
    for (std::int32_t i = 0; i < 40; ++i) {
      try {
        bool const right = s.there(s.step({{i % 14, i % 14 + 2}}));
        CHECK(right);
      } catch (kvpolicy::error const&) {
        ++lost;
      }
    }
    CHECK(lost > 3);
    CHECK(lost < 40);
  }
}

TEST_CASE("a block that is gone from the tier is an error, not a row of something else") {
  short_sequence s({.request = 9, .slots = 4});
  s.step({{0, 4}});
  drop_one(s.made, {9, 0, 0, 7, 1});
  CHECK_THROWS_AS(s.step({{7, 8}}), kvpolicy::error);
  CHECK_THROWS_AS(s.resident.bring({0}), kvpolicy::error);
  CHECK(s.there(s.step({{8, 9}})));
}

TEST_CASE("a tier that does not deliver is an error after the deadline, and wakes up again") {
  short_sequence s({.slots = 4, .deadline = std::chrono::milliseconds(20)});
  s.step({{0, 4}});
  s.made.options().never = true;
  CHECK_THROWS_AS(s.step({{5, 8}}), kvpolicy::error);
  CHECK_THROWS_AS(s.again({{5, 8}}), kvpolicy::error);
  CHECK(s.resident.statistics().stall_seconds >= .03);
  s.made.options().never = false;
  CHECK(s.there(s.again({{5, 8}})));
}

TEST_CASE("a get that never ends holds neither a new sequence nor the destructor, and may still write when it does") {
  fake_tier made(row_store::row_bytes(short_sequence::shape, element_type::f32), 64, {.never = true});
  tiers::any_tier tier = lend(made);
  {
    short_sequence rows({.slots = 4});  // for its store alone
    resident_rows resident(tier, rows.store, {.slots = 4, .wait = false, .deadline = std::chrono::milliseconds(20)});
    std::vector<range_list> kept{{{0, 16}}};
    rows.resident.bring({0});
    resident.put_away({0}, {scope::head, kept, 1}, 16, std::array<std::int64_t, 1>{});
    resident.shed({0});
    kept[0] = {{0, 2}};
    rows.append();
    for (int steps = 0; steps < 3; ++steps) {
      CHECK(resident.ready({0}, {scope::head, kept, 1}).of({0}).size() <= 1);
    }
    REQUIRE(made.occupied().in_flight > 0);
    resident.truncate(0);
    rows.resident.truncate(0);
  }
  made.options().never = false;
  for (int polls = 0; made.occupied().in_flight > 0 && polls < 1000; ++polls) made.run();
  CHECK(made.occupied().in_flight == 0);
}

TEST_CASE("a tier without room, or with blocks of another size, and slots below zero are refused") {
  short_sequence s({});
  std::int64_t const bytes = row_store::row_bytes(short_sequence::shape, element_type::f32);
  fake_tier other(bytes + 1, 4);
  tiers::any_tier of_other = lend(other);
  CHECK_THROWS_AS(resident_rows(of_other, s.store, {}), kvpolicy::invalid_value);
  CHECK_THROWS_AS(resident_rows(s.tier, s.store, {.slots = -1}), kvpolicy::invalid_value);
  cache_shape const halves{
      .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 32, .max_tokens = 200, .type = element_type::bf16};
  block_arena arena(row_store::block_bytes(halves), 1);
  row_store store(arena, halves);
  auto const coded_from = [](element_type from) {
    auto inner = tiers::any_tier::of<tiers::host>(tiers::coded::stored_bytes(64, element_type::q8_0), 4);
    return tiers::any_tier::of<tiers::coded>(std::move(inner), 64, from, element_type::q8_0);
  };
  tiers::any_tier wrong = coded_from(element_type::f16);
  CHECK_THROWS_WITH(resident_rows(wrong, store, {}),
                    Catch::Matchers::ContainsSubstring("a codec of f16 elements for rows of bf16"));
  tiers::any_tier right = coded_from(element_type::bf16);
  CHECK_NOTHROW(resident_rows(right, store, {}));
  fake_tier small(bytes, 4);
  tiers::any_tier of_small = lend(small);
  {
    resident_rows resident(of_small, s.store, {.request = 2});
    s.resident.bring({0});
    s.kept[0] = {{0, 16}};
    CHECK_THROWS_AS(resident.put_away({0}, {scope::head, s.kept, 1}, 16, std::array<std::int64_t, 1>{}), kvpolicy::error);
    s.kept[0] = {{3, 6}};
    resident.put_away({0}, {scope::head, s.kept, 1}, 16, std::array<std::int64_t, 1>{});
    CHECK(small.occupied().resident == 3);
  }
  CHECK(small.occupied().resident == 0);
}

TEST_CASE("where the arena is exhausted bringing a layer fails, and steps go on") {
  short_sequence s({.slots = 4}, {}, 150);
  s.step({{0, 4}});
  REQUIRE(s.arena.held() == 1);
  std::vector<std::int32_t> taken;
  while (s.arena.free() > 1) taken.push_back(s.arena.take());
  CHECK_THROWS_AS(s.resident.bring({0}), kvpolicy::error);
  s.resident.shed({0});
  CHECK(s.there(s.step({{40, 44}})));
  for (std::int32_t const block : taken) s.arena.release(block);
  s.resident.bring({0});
  for (std::int32_t t = 0; t < 150; ++t) CHECK(s.there(t));
}

TEST_CASE("what would mix up rows, or lose them, is refused by name") {
  using Catch::Matchers::ContainsSubstring;
  short_sequence s({});
  row_store other(s.arena, short_sequence::shape);
  CHECK_THROWS_WITH(resident_rows(s.tier, other, {}), ContainsSubstring("give each sequence its own"));
  CHECK_NOTHROW(resident_rows(s.tier, other, {.request = 1}));
  CHECK_NOTHROW(resident_rows(s.tier, other, {.request = 1}));  // the one before has ended
  auto const put_away = [&](std::int64_t tokens, std::int64_t stay) {
    s.resident.put_away({0}, {scope::head, s.kept, 1}, tokens, std::array<std::int64_t, 1>{stay});
  };
  CHECK_THROWS_WITH(put_away(17, 0), ContainsSubstring("the store has 16 in layer 0"));
  CHECK_THROWS_WITH(put_away(16, -7), ContainsSubstring("request::always_read()"));
  s.store.truncate(10);
  for (int i = 0; i < 10; ++i) s.append();
  std::string const why = "the store was cut to 10 tokens, and a prompt of 16 is in the tier; call resident_rows::truncate()";
  CHECK_THROWS_WITH(s.again({{0, 4}}), ContainsSubstring(why));
  CHECK_THROWS_WITH(put_away(20, 0), ContainsSubstring(why));
  CHECK_THROWS_WITH(s.resident.bring({0}), ContainsSubstring(why));
  s.resident.truncate(10);
  CHECK_NOTHROW(s.again({{0, 4}}));
}
