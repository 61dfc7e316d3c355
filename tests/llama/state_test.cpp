// The engine's state saved and restored around a session: with save() and load(), and without.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>

#include "decoding.hpp"
#include "kvpolicy/presets/chess.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/h2o.hpp"
#include "kvpolicy/presets/infllm.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/sentencekv.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr presets::quest small_quest{.tokens = 64, .page = 8};
constexpr presets::snapkv small_snapkv{.tokens = 64, .smooth = {.width = 5}, .after = 0};

template <class Policy>
void check_saved(Policy const& preset) {
  model_owner const model = tiny_llama();
  std::vector<made_choice> choices;
  session policy(preset, recording(choices));
  decoder ours(model.get(), &policy);
  ours.feed(random_tokens(250));
  std::vector<std::uint8_t> const state = ours.state();
  saved_prompt const saved = policy.save();
  std::vector<logits> const expected = decode_each(ours, random_tokens(12, 3));
  std::vector<made_choice> const expected_choices = std::exchange(choices, {});
  auto const check_loaded = [&](auto& loaded, decoder& engine, std::vector<made_choice>& made) {
    made.clear();
    engine.restore(state);
    loaded.load(saved);
    CHECK(identical(decode_each(engine, random_tokens(12, 3)), expected));
    CHECK(identical(made, expected_choices));
  };

  SECTION("in the same session, after another prompt") {
    ours.clear();
    ours.feed(random_tokens(400, 9));
    decode_each(ours, random_tokens(5, 8));
    check_loaded(policy, ours, choices);
  }
  SECTION("in another session and context that decoded before") {
    std::vector<made_choice> others;
    session second(preset, recording(others));
    decoder other(model.get(), &second);
    other.feed(random_tokens(40, 2));
    decode_each(other, random_tokens(3, 2));
    check_loaded(second, other, others);
  }
}

TEST_CASE("a restored prompt is decoded as it was the first time") {
  SECTION("full") { check_saved(presets::full{}); }
  SECTION("quest") { check_saved(small_quest); }
  SECTION("snapkv") { check_saved(small_snapkv); }
  SECTION("streaming_llm") { check_saved(presets::streaming_llm{.tokens = 64}); }
  SECTION("h2o") { check_saved(presets::h2o{.tokens = 64}); }
  SECTION("infllm") { check_saved(presets::infllm{.tokens = 96, .block = 16}); }
  SECTION("sentencekv") {
    check_saved(presets::sentencekv{.tokens = 64, .sentences = {.boundary = ends_by_length(), .longest = 20}, .after = 0});
  }
  SECTION("snapkv with quest") {
    check_saved(
        policy{presets::snapkv{.tokens = 96, .after = 0}.parts().retain, presets::quest{.tokens = 64}.parts().retrieve});
  }
  SECTION("chess") {
    check_saved(presets::chess{.fractions = {.grids = .5f, .chunks = .2f, .pages = .1f},
                               .units = {.page = 8},
                               .recent_pages = 2,
                               .entropy = std::numeric_limits<float>::infinity(),
                               .varentropy = std::numeric_limits<float>::infinity()});
  }
}

TEST_CASE("a saved prompt loads into a session whose context has not decoded yet") {
  model_owner const model = tiny_llama();
  session first(small_snapkv);
  decoder one(model.get(), &first);
  one.feed(random_tokens(250));
  session second(small_snapkv);
  decoder other(model.get(), &second);
  other.restore(one.state());
  second.load(first.save());
  CHECK(identical(decode_each(other, random_tokens(12, 3)), decode_each(one, random_tokens(12, 3))));
}

TEST_CASE("a saved prompt has its token ids, and its queries where somebody wants them") {
  model_owner const model = tiny_llama();
  session plain(small_quest);
  session keeping(small_quest, {.observation_queries = all_queries});
  decoder one(model.get(), &plain);
  decoder other(model.get(), &keeping);
  token_list const prompt = random_tokens(250);
  one.feed(prompt);
  other.feed(token_list(prompt.begin(), prompt.begin() + 100));
  other.feed(token_list(prompt.begin() + 100, prompt.end()));
  CHECK(plain.save().ids == prompt);
  CHECK(keeping.save().ids == prompt);
  CHECK(plain.save().window == 0);
  CHECK(keeping.save().window == 250);
  CHECK(keeping.save().tokens == 250);
  CHECK(keeping.save().queries.size() == 2 * 250 * 4 * 32);
  other.cut(120);
  other.feed(token_list(prompt.begin() + 120, prompt.begin() + 130));
  CHECK(keeping.save().ids == token_list(prompt.begin(), prompt.begin() + 130));
  CHECK(keeping.save().tokens == 130);
  CHECK(keeping.save().window == 130);
}

TEST_CASE("a saved prompt of another model is refused") {
  model_owner const model = tiny_llama();
  model_owner const larger = tiny_llama({.layers = 3});
  session first(small_snapkv);
  session second(small_snapkv);
  decoder one(model.get(), &first);
  decoder other(larger.get(), &second);
  one.feed(random_tokens(50));
  other.feed(random_tokens(50));
  CHECK_THROWS_AS(second.load(first.save()), invalid_value);
}

/// The state of a sequence that no session has seen.
std::vector<std::uint8_t> unknown_state(llama_model* model, std::int64_t tokens) {
  decoder engine(model, nullptr);
  engine.feed(random_tokens(tokens, 77));
  return engine.state();
}

/// Refused, and learnt anew as soon as load() says that its cells are in order.
void check_quest_notices(std::int64_t replaced) {
  model_owner const model = tiny_llama();
  std::vector<made_choice> choices;
  std::vector<made_choice> fresh_choices;
  session policy(small_quest, recording(choices));
  session fresh(small_quest, recording(fresh_choices));
  decoder ours(model.get(), &policy);
  decoder other(model.get(), &fresh);
  ours.feed(random_tokens(300));
  decode_each(ours, random_tokens(10, 3));
  std::vector<std::uint8_t> const state = unknown_state(model.get(), replaced);
  ours.restore(state);
  other.restore(state);
  choices.clear();
  CHECK(ours.status_of({1}) == 2);
  CHECK_THROWS_WITH(policy.check(), ContainsSubstring("did not see written"));
  policy.load({.tokens = replaced});
  fresh.load({.tokens = replaced});
  CHECK(identical(decode_each(ours, random_tokens(10, 4)), decode_each(other, random_tokens(10, 4))));
  CHECK(identical(choices, fresh_choices));
}

TEST_CASE("quest notices that the state was replaced by one at least as long as its prompt") {
  std::int64_t const replaced = GENERATE(300, 305, 310, 311, 400);
  CAPTURE(replaced);
  check_quest_notices(replaced);
}

TEST_CASE("quest notices that the state was replaced by one shorter than its prompt") {
  std::int64_t const replaced = GENERATE(299, 200, 20);
  CAPTURE(replaced);
  check_quest_notices(replaced);
}

TEST_CASE("quest is told by load() that the state was replaced by one it knows nothing of") {
  model_owner const model = tiny_llama();
  session policy(small_quest);
  session fresh(small_quest);
  decoder ours(model.get(), &policy);
  decoder other(model.get(), &fresh);
  ours.feed(random_tokens(300));
  decode_each(ours, random_tokens(10, 3));
  std::int64_t const tokens = GENERATE(20, 200, 300, 400);
  std::vector<std::uint8_t> const state = unknown_state(model.get(), tokens);
  ours.restore(state);
  policy.load({.tokens = tokens});
  other.restore(state);
  fresh.load({.tokens = tokens});
  CHECK(identical(decode_each(ours, random_tokens(10, 4)), decode_each(other, random_tokens(10, 4))));
}

TEST_CASE("snapkv refuses a state that it has not seen the prompt of, and goes on with the next prompt") {
  model_owner const model = tiny_llama();
  session policy(small_snapkv);
  decoder ours(model.get(), &policy);
  ours.feed(random_tokens(300));
  decode_each(ours, random_tokens(10, 3));
  std::string why = "did not see written";
  SECTION("without load") { ours.restore(unknown_state(model.get(), 330)); }
  SECTION("without load, of the prompt's length") { ours.restore(unknown_state(model.get(), 300)); }
  SECTION("told by load") {
    ours.restore(unknown_state(model.get(), 330));
    policy.load();
  }
  SECTION("told by load how many tokens there are") {
    std::int64_t const tokens = GENERATE(200, 330);
    ours.restore(unknown_state(model.get(), tokens));
    policy.load({.tokens = tokens});
    why = "the prompt's last queries";
  }
  CHECK(ours.status_of({1}) == 2);
  CHECK_THROWS_WITH(policy.check(), ContainsSubstring(why));
  CHECK_NOTHROW(policy.check());

  session fresh(small_snapkv);
  decoder other(model.get(), &fresh);
  ours.clear();
  CHECK(identical(ours.feed(random_tokens(250)), other.feed(random_tokens(250))));
  CHECK(identical(decode_each(ours, random_tokens(10, 4)), decode_each(other, random_tokens(10, 4))));
}

}  // namespace
}  // namespace kvpolicy::llama::testing
