// Which rows give way when slots are few, step by step.
#include <array>

#include "kvpolicy/tier/resident.hpp"
#include "tier/blocks.hpp"

using namespace kvpolicy_test;

namespace {

constexpr cache_shape one_head{
    .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 4, .max_tokens = 64, .type = element_type::f32};
constexpr std::int64_t prompt = 16;

/// One head's sequence, whose whole prompt is in a tier.
struct sequence {
  random_source random{1};
  random_cache cache{one_head, layout::head_major, 1, random};
  fake_tier made;
  tier::resident_rows<fake_tier> resident;
  std::int64_t tokens = prompt;
  std::vector<range_list> kept{1};

  explicit sequence(tier::resident_options options, fake_options how = {.most_polls = 0})
      : made(tier::resident_rows<fake_tier>::block_bytes(one_head), 64, how), resident(made, one_head, options) {
    kept[0] = {{0, prompt}};
    resident.store(view(), {0}, {scope::head, kept, 1});
  }
  own_view view() const { return {&cache, tokens}; }

  /// What a step for one more token reads.
  selection step(range_list list) {
    ++tokens;
    return again(std::move(list));
  }
  selection again(range_list list) {
    kept[0] = std::move(list);
    return resident.ready(view(), {0}, {scope::head, kept, 1});
  }
  /// Whether a row is in fast memory, and is the view's.
  bool there(std::int32_t t) const {
    rows const keys = resident.keys({0});
    return keys.indices[t] >= 0 && std::memcmp(keys.address({0}, {t}), view().keys({0}).address({0}, {t}), 16) == 0;
  }
  bool there(selection const& read) const {
    for (token_range const& range : read.of({0})) {
      for (std::int32_t t = range.begin; t < range.end; ++t) {
        if (!there(t)) return false;
      }
    }
    return true;
  }
};

}  // namespace

TEST_CASE("the rows that were read longest ago give way") {
  sequence s({.slots = 6});
  CHECK(s.there(s.step({{0, 2}})));
  CHECK(s.there(s.step({{2, 4}})));
  CHECK((s.there(0) && s.there(1) && s.there(16) && s.there(17)));
  CHECK(s.there(s.step({{0, 1}, {4, 5}})));  // and a slot for the new token
  CHECK((s.there(0) && s.there(4) && s.there(18)));
  CHECK_FALSE(s.there(1));
}

TEST_CASE("a step that was refused leaves the next ones right") {
  sequence s({.slots = 8});
  CHECK_THROWS_AS(s.step({{0, 8}}), kvpolicy::invalid_value);  // and the new token: nine
  CHECK(s.there(s.step({{6, 7}})));
  CHECK(s.there(s.step({{6, 7}, {8, 12}})));
}

TEST_CASE("the new token does not push out what a step reads that does not wait") {
  sequence s({.slots = 5, .wait = false}, {.most_polls = 0});
  selection read = s.step({{0, 2}});
  for (int tries = 0; tries < 50 && read.of({0}).front().begin != 0; ++tries) read = s.again({{0, 2}});
  CHECK(s.there(read));
  s.made.options().never = true;
  for (int steps = 0; steps < 5; ++steps) {  // row 4 is on its way; rows 0 and 1 are read meanwhile, and the new ones
    bool right = true;
    try {
      right = s.there(s.step({{4, 5}}));
    } catch (kvpolicy::invalid_value const&) {  // no slot for the new token: that is right too
    }
    CHECK(right);
  }
  s.made.options().never = false;
}

TEST_CASE("two selections for one token are read one after the other") {
  sequence s({.slots = 5});
  CHECK(s.there(s.step({{0, 4}})));
  CHECK(s.there(s.again({{4, 8}})));
}

TEST_CASE("a sequence that was cut back reads no token that is gone") {
  sequence s({.slots = 0, .wait = false}, {.most_polls = 0});
  for (int steps = 0; steps < 6; ++steps) s.step({{prompt, static_cast<std::int32_t>(s.tokens)}});
  s.made.options().never = true;
  s.tokens -= 4;
  selection const read = s.again({{0, 1}});  // on its way
  CHECK((read.of({0}).empty() || read.of({0}).back().end <= s.tokens));
  s.made.options().never = false;
}

TEST_CASE("a sequence that was cut back into its prompt reads the rows that came since") {
  for (bool const wait : {true, false}) {
    for (std::int64_t const slots : {0, 12}) {
      CAPTURE(wait, slots);
      sequence s({.slots = slots, .wait = wait}, {.most_polls = 2});
      s.step({{0, 4}});
      s.step({{6, 9}});  // perhaps on its way when the tail goes
      s.tokens = 5;      // tokens 5 to 17 are gone
      s.cache.fill(5, 40, s.random);
      for (int steps = 0; steps < 6; ++steps) {
        auto const now = static_cast<std::int32_t>(s.tokens);
        selection const read = s.step({{2, 4}, {5, now + 1}});
        CHECK(s.there(read));
        CHECK(read.of({0}).back().end == now + 1);
      }
      CHECK(s.made.occupied().resident + s.made.occupied().in_flight == 5);  // of the prompt, what is left
    }
  }
}

TEST_CASE("slots below zero are refused") {
  fake_tier made(tier::resident_rows<fake_tier>::block_bytes(one_head), 64);
  CHECK_THROWS_AS((tier::resident_rows<fake_tier>(made, one_head, {.slots = -1})), kvpolicy::invalid_value);
}
