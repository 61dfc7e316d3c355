// Rows between a store and a tier: whatever is put away, fetched, cut and copied, what a step reads is what was appended.
#include "kvpolicy/store/resident_rows.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "kvpolicy/testing/random_cache.hpp"
#include "kvpolicy/tier/resident_options.hpp"
#include "tier/blocks.hpp"

using namespace kvpolicy_test;

namespace {

constexpr std::int64_t longest = 160;
constexpr std::int64_t wanted_at_most = 8;

/// A tier of somebody else's.
template <class Tier>
struct borrowed {
  Tier* tier;
  std::int64_t block_bytes() const { return tier->block_bytes(); }
  std::int64_t capacity() const { return tier->capacity(); }
  bool put(std::span<tier::block_write const> writes) { return tier->put(writes); }
  tier::ticket get(std::span<tier::block_read const> reads) { return tier->get(reads); }
  tier::status poll(tier::ticket id) { return tier->poll(id); }
  tier::status wait(tier::ticket id, tier::clock::time_point deadline) { return tier->wait(id, deadline); }
  void drop(std::span<tier::block_key const> keys) { tier->drop(keys); }
  tier::usage occupied() { return tier->occupied(); }
};
template <class Tier>
tier::any_tier lend(Tier& tier) {
  return tier::any_tier::of<borrowed<Tier>>(&tier);
}

cache_shape shape_of(random_source& random) {
  return {.layers = random.between(1, 3),
          .q_heads = 2,
          .kv_heads = 2,
          .head_dim = random.between(1, 9),
          .max_tokens = longest,
          .type = random.pick(std::array{element_type::f32, element_type::f16, element_type::bf16})};
}

/// One sequence: its rows, and what they should be.
class sequence {
 public:
  sequence(tier::any_tier& tier, block_arena& arena, cache_shape const& shape, tier::resident_options options,
           std::int64_t open, random_source& random)
      : random_(&random),
        shape_(shape),
        options_(options),
        open_(open),
        store_(arena, shape),
        resident_(std::in_place, tier, store_, options),
        heads_(static_cast<std::size_t>(shape.layers * shape.kv_heads)),
        lists_(static_cast<std::size_t>(shape.kv_heads)) {}

  std::int64_t tokens() const { return tokens_; }
  std::int64_t in_tier() const {
    std::int64_t count = 0;
    for (head const& h : heads_) count += std::ssize(h.away);
    return count;
  }
  tier::resident_statistics const& statistics() const { return resident_->statistics(); }
  row_store const& store() const { return store_; }
  resident_rows& rows() { return *resident_; }

  /// All that is there is read, as attention of a prompt does; then it ends, and some of it is retained.
  void prompt(std::int64_t count) {
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      append(layer, count);
      resident_->bring(layer);
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        for (auto const& [token, bytes] : at(layer, h).rows)
          check(is_right(layer, h, token), "a layer that was brought lacks a row");
      }
      resident_->shed(layer);
    }
    tokens_ += count;
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      resident_->bring(layer);
      std::array<std::int64_t, 2> stay{};
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        stay[static_cast<std::size_t>(h)] = random_->one_in(6) ? all_tokens : random_->between(0, 5);
        retain_some(layer, h);
      }
      resident_->put_away(layer, {scope::head, lists_, shape_.kv_heads}, tokens_, stay);
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        head& own = at(layer, h);
        own.away.clear();
        for (auto const& [token, bytes] : own.rows) own.away.insert(token);
        for (std::int64_t i = stay[static_cast<std::size_t>(h)]; i > 0 && !own.away.empty(); --i) {
          own.away.erase(std::prev(own.away.end()));
        }
      }
      kept_.push_back(lists_);
    }
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      store_.retain(layer, {scope::head, kept_[static_cast<std::size_t>(layer.value)], shape_.kv_heads}, tokens_);
    }
    kept_.clear();
  }

  /// One token more, and what is chosen is read. Returns how many heads read something else than was chosen.
  std::int64_t step() {
    if (resident_->was_cut()) {
      for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) resident_->bring(layer);
      resident_->mend_cut(open_);
      for (head& h : heads_) {
        for (std::int64_t i = 0; i < open_ && !h.away.empty(); ++i) h.away.erase(std::prev(h.away.end()));
      }
    }
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) append(layer, 1);
    ++tokens_;
    std::int64_t late = 0;
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) late += read(layer, wanted(layer));
    return late;
  }

  std::int64_t read(layer_id layer, selection const& kept) {
    std::int64_t late = 0;
    auto const before = resident_->statistics();
    selection const reads = resident_->ready(layer, kept);
    std::int64_t named = 0;
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      late += reads.of({h}) == kept.of({h}) ? 0 : 1;
      for (token_range const& range : reads.of({h})) {
        for (std::int32_t t = range.begin; t < range.end; ++t)
          check(is_right(layer, h, t), "a row that is read is not the one");
      }
      for (token_range const& range : kept.of({h})) {
        for (std::int32_t t = range.begin; t < range.end; ++t) named += at(layer, h).away.contains(t) ? 1 : 0;
      }
      check(open_is_here(layer, h), "a row of a unit that is open is not in memory");
      if (options_.slots > 0)
        check(away_and_here(layer, h) <= options_.slots, "more rows of the tier are in memory than slots");
    }
    auto const now = resident_->statistics() - before;
    check(now.wanted == named, "the rows that were wanted are miscounted");
    if (options_.wait) {
      check(late == 0, "a step that waits does not read what was chosen");
      check(now.bytes_fetched == (now.wanted - now.hits) * row_bytes(), "bytes are miscounted");
    }
    return late;
  }

  /// Up to `wanted_at_most` tokens of what a head has in the tier, and any of the others.
  selection wanted(layer_id layer) {
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      range_list& list = lists_[static_cast<std::size_t>(h)];
      list.clear();
      std::int64_t left = random_->between(0, wanted_at_most);
      for (auto const& [token, bytes] : at(layer, h).rows) {
        bool const away = at(layer, h).away.contains(token);
        if (!random_->one_in(3) || (away && left-- <= 0)) continue;
        kvpolicy::append(list, token, token + 1, random_->one_in(4) ? reason::sink : reason::scored);
      }
    }
    return {scope::head, lists_, shape_.kv_heads};
  }

  void cut(std::int64_t tokens) {
    resident_->truncate(tokens);
    store_.truncate(tokens);
    for (head& h : heads_) {
      h.rows.erase(h.rows.lower_bound(static_cast<std::int32_t>(tokens)), h.rows.end());
      h.away.erase(h.away.lower_bound(static_cast<std::int32_t>(tokens)), h.away.end());
    }
    tokens_ = std::min(tokens_, tokens);
  }

  void become(sequence const& other, std::int64_t tokens) {
    cut(0);
    store_ = other.store_.fork(tokens);
    resident_->take_over(*other.resident_, tokens);
    heads_ = other.heads_;
    tokens_ = other.tokens_;
    cut(tokens);
  }

 private:
  struct head {
    std::map<std::int32_t, std::vector<std::byte>> rows;  ///< all that was not dropped
    std::set<std::int32_t> away;                          ///< of them, those that the tier should have
  };
  std::int64_t row_bytes() const { return row_store::row_bytes(shape_, shape_.type); }
  head& at(layer_id layer, std::int64_t h) { return heads_[static_cast<std::size_t>(layer.value * shape_.kv_heads + h)]; }

  void append(layer_id layer, std::int64_t count) {
    std::int64_t const row = row_bytes() / 2;
    std::vector<std::byte> bytes(static_cast<std::size_t>(2 * count * shape_.kv_heads * row));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random_->between(0, 255));
    kvpolicy::rows keys{.base = bytes.data(),
                        .type = shape_.type,
                        .heads = shape_.kv_heads,
                        .tokens = count,
                        .head_dim = shape_.head_dim,
                        .head_stride = count * row,
                        .token_stride = row,
                        .dim_stride = size_of(shape_.type)};
    kvpolicy::rows values = keys;
    values.base += count * shape_.kv_heads * row;
    std::int64_t const before = store_.tokens(layer);
    store_.append(layer, keys, values);
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      for (std::int64_t t = 0; t < count; ++t) {
        std::vector<std::byte>& both = at(layer, h).rows[static_cast<std::int32_t>(before + t)];
        both.assign(keys.address({h}, {t}), keys.address({h}, {t}) + row);
        both.insert(both.end(), values.address({h}, {t}), values.address({h}, {t}) + row);
      }
    }
  }

  void retain_some(layer_id layer, std::int64_t h) {
    head& own = at(layer, h);
    if (!random_->one_in(3)) {
      std::erase_if(own.rows, [&](auto const&) { return random_->one_in(7); });
    }
    range_list& list = lists_[static_cast<std::size_t>(h)];
    list.clear();
    for (auto const& [token, bytes] : own.rows) kvpolicy::append(list, token, token + 1, reason::scored);
  }

  bool is_right(layer_id layer, std::int64_t h, std::int32_t token) {
    auto const expected = at(layer, h).rows.find(token);
    std::byte const* const row = store_.row(layer, h, token);
    return expected != at(layer, h).rows.end() && row != nullptr &&
           std::memcmp(row, expected->second.data(), expected->second.size()) == 0 &&
           store_.view(tokens_).keys(layer).address({h}, {token}) == row;
  }
  bool open_is_here(layer_id layer, std::int64_t h) {
    return std::ranges::all_of(at(layer, h).rows, [&](auto const& row) {
      return at(layer, h).away.contains(row.first) || store_.row(layer, h, row.first) != nullptr;
    });
  }
  std::int64_t away_and_here(layer_id layer, std::int64_t h) {
    return std::ranges::count_if(at(layer, h).away, [&](std::int32_t t) { return store_.row(layer, h, t) != nullptr; });
  }

  random_source* random_;
  cache_shape shape_;
  tier::resident_options options_;
  std::int64_t open_;
  row_store store_;
  std::optional<resident_rows> resident_;
  std::vector<head> heads_;
  std::vector<range_list> lists_;
  std::vector<std::vector<range_list>> kept_;
  std::int64_t tokens_ = 0;
};

/// What all of a case's sequences share.
template <class Made>
struct workplace {
  random_source random;
  cache_shape shape = shape_of(random);
  Made made;
  tier::any_tier tier = lend(made.tier);
  block_arena arena;

  explicit workplace(std::uint64_t seed)
      : random(seed),
        made(row_store::row_bytes(shape, shape.type), 3 * shape.layers * shape.kv_heads * longest, seed),
        arena(row_store::block_bytes(shape), 4 * shape.layers * shape.kv_heads * (longest / row_store::rows_of_block + 1)) {}
  std::unique_ptr<sequence> start(tier::resident_options options, std::int64_t open) {
    return std::make_unique<sequence>(tier, arena, shape, options, open, random);
  }
};

/// Random calls on two sequences. Returns how many heads read late.
template <class Made>
std::int64_t random_calls(std::uint64_t seed, bool wait) {
  CAPTURE(seed, wait);
  workplace<Made> here(seed);
  random_source& random = here.random;
  std::int64_t late = 0;
  {
    std::int64_t const slots = random.one_in(2) ? 0 : (wait ? 1 : 3) * wanted_at_most + random.between(0, 8);
    std::int64_t const open = random.between(0, 5);
    std::array<std::unique_ptr<sequence>, 2> all;
    std::uint64_t id = 7;
    for (auto& s : all) s = here.start({.request = id++, .slots = slots, .wait = wait}, open);
    for (int calls = 0; calls < 40; ++calls) {
      sequence& s = *all[static_cast<std::size_t>(random.between(0, 1))];
      switch (random.between(0, 11)) {
        case 0:
        case 1:
          if (s.tokens() < longest - 40) s.prompt(random.between(1, 40));
          break;
        case 2:
          s.cut(random.between(0, s.tokens()));
          break;
        case 3: {
          sequence& other = *all[&s == all[0].get() ? 1 : 0];
          s.become(other, random.between(0, other.tokens()));
          break;
        }
        default:
          if (s.tokens() > 0 && s.tokens() < longest) late += s.step();
          break;
      }
      check(adds_up(here.made.tier), "free, resident and in flight do not add up to the capacity");
      if (here.made.tier.occupied().in_flight == 0) {
        check(here.made.tier.occupied().resident == all[0]->in_tier() + all[1]->in_tier(),
              "the tier has other rows than it should");
      }
    }
  }
  check(here.made.tier.occupied().resident == 0, "blocks stay in the tier after their sequence");
  check(here.arena.held() == 0, "blocks stay in the arena after their sequence");
  return late;
}

constexpr std::uint64_t seeds = quick_build ? 300 : 40;

/// One head's sequence, all of which is in the tier.
struct short_sequence {
  static constexpr cache_shape shape{
      .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 4, .max_tokens = 200, .type = element_type::f32};
  fake_tier made;
  tier::any_tier tier = lend(made);
  block_arena arena{row_store::block_bytes(shape), 4};
  row_store store{arena, shape};
  resident_rows resident;
  std::array<float, 4> row{};
  std::vector<range_list> kept{1};

  explicit short_sequence(tier::resident_options options, fake_options how = {.most_polls = 0}, std::int32_t tokens = 16)
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

TEMPLATE_TEST_CASE("what a step reads is what was appended, wherever it was in between", "", of_fake, of_same_memory, of_host) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) random_calls<TestType>(seed, true);
}

TEMPLATE_TEST_CASE("a step that does not wait reads what is there, and that is right", "", of_fake, of_host) {
  std::int64_t late = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) late += random_calls<TestType>(seed, false);
  if (std::is_same_v<TestType, of_fake>) CHECK(late > 100);
}

TEST_CASE("a selection that stays is read in the end") {
  short_sequence s({.wait = false}, {.most_polls = 3});
  selection read = s.step({{0, 4}});
  int tries = 0;
  for (; tries < 50 && read.of({0}) != range_list{{0, 4}}; ++tries) read = s.again({{0, 4}});
  CHECK(tries < 50);
  CHECK(s.there(read));
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
  tier::any_tier tier = lend(made);
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
  tier::any_tier of_other = lend(other);
  CHECK_THROWS_AS(resident_rows(of_other, s.store, {}), kvpolicy::invalid_value);
  CHECK_THROWS_AS(resident_rows(s.tier, s.store, {.slots = -1}), kvpolicy::invalid_value);
  fake_tier small(bytes, 4);
  tier::any_tier of_small = lend(small);
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
