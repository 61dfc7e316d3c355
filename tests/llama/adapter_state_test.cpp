// What engines do between two decodes, and a session must notice: each was once answered wrongly without a word.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>

#include "decoding.hpp"
#include "kvpolicy/presets/chess.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr presets::quest small_quest{.tokens = 32, .page = 8};
constexpr presets::snapkv small_snapkv{.tokens = 32, .smooth = {.width = 5}, .after = 0};
constexpr context_options streams{.tokens = 1024, .sequences = 2};
constexpr context_options unified{.tokens = 512, .sequences = 2, .unified = true};
constexpr double tolerance = .05;

/// Decodes tokens of one sequence, and says to the session whose they are.
int decode(decoder& with, session& told, llama_seq_id of, token_list const& tokens) {
  std::vector<llama_seq_id> const whose(tokens.size(), of);
  told.set_batch(whose);
  return with.status_of(tokens, whose);
}

/// The logits behind a context's last decode of one sequence.
logits last_logits(decoder const& of) {
  float const* const first = llama_get_logits_ith(of.context(), -1);
  return {first, first + tiny_vocabulary};
}

/// What a policy answers to a token behind a prompt in a context that holds nothing else.
template <class Policy>
logits alone(llama_model* model, Policy const& preset, token_list const& prompt, llama_token next) {
  session policy(preset);
  decoder ours(model, &policy);
  ours.feed(prompt);
  return ours.feed(next);
}

TEST_CASE("a copy onto a stream that held another sequence is chosen for anew") {
  model_owner const model = tiny_llama();
  session policy(small_quest);
  decoder ours(model.get(), &policy, streams);
  token_list const prompt = random_tokens(50, 1);
  REQUIRE(decode(ours, policy, 0, prompt) == 0);
  REQUIRE(decode(ours, policy, 1, random_tokens(120, 2)) == 0);
  REQUIRE(decode(ours, policy, 1, {4}) == 0);
  REQUIRE(llama_memory_seq_rm(ours.memory(), 1, -1, -1));
  llama_memory_seq_cp(ours.memory(), 0, 1, -1, -1);
  SECTION("at once") {}
  SECTION("after its source went on") {
    REQUIRE(llama_memory_seq_rm(ours.memory(), 0, 20, -1));
    REQUIRE(decode(ours, policy, 0, random_tokens(9, 8)) == 0);
  }
  REQUIRE(decode(ours, policy, 1, {5}) == 0);
  CHECK(difference(last_logits(ours), alone(model.get(), small_quest, prompt, 5)) < tolerance);
}

TEST_CASE("a state of the session's own past is recognised, whatever was there in between") {
  model_owner const model = tiny_llama();
  std::int64_t const shared = GENERATE(0, 64);
  std::int64_t const before = GENERATE(50, 110);
  std::int64_t const between = GENERATE(90, 120);
  auto const tokens = [&](std::int64_t count, std::uint64_t seed) {
    token_list made = random_tokens(std::min(shared, count), 3);
    token_list const rest = random_tokens(count - std::ssize(made), seed);
    made.insert(made.end(), rest.begin(), rest.end());
    return made;
  };
  CAPTURE(shared, before, between);
  session policy(small_quest);
  decoder ours(model.get(), &policy);
  ours.feed(tokens(before, 1));
  std::vector<std::uint8_t> const state = ours.state();
  ours.clear();
  ours.feed(tokens(between, 2));
  ours.feed(4);
  ours.restore(state);
  CHECK(difference(ours.feed(5), alone(model.get(), small_quest, tokens(before, 1), 5)) < tolerance);
}

/// A sequence whose cells are in the engine's order, not its own: saved from there, restored to a context that is empty.
template <class Policy>
void check_fragmented(Policy const& preset) {
  model_owner const model = tiny_llama();
  token_list const prompt = random_tokens(30, 2);
  token_list const rest = random_tokens(30, 9);
  session policy(preset);
  decoder ours(model.get(), &policy, unified);
  REQUIRE(decode(ours, policy, 0, random_tokens(100, 1)) == 0);
  REQUIRE(decode(ours, policy, 1, prompt) == 0);
  REQUIRE(llama_memory_seq_rm(ours.memory(), 0, -1, -1));
  for (llama_token const t : rest) REQUIRE(decode(ours, policy, 1, {t}) == 0);
  std::vector<std::uint8_t> state(llama_state_seq_get_size(ours.context(), 1));
  llama_state_seq_get_data(ours.context(), state.data(), state.size(), 1);
  saved_prompt const saved = policy.save(1);

  auto const second = std::make_unique<session>(preset);
  decoder other(model.get(), second.get(), unified);
  bool const into_fragments = GENERATE(false, true);
  CAPTURE(into_fragments);
  if (into_fragments) {
    REQUIRE(decode(other, *second, 0, random_tokens(40, 5)) == 0);
    REQUIRE(llama_memory_seq_rm(other.memory(), 0, 10, -1));
    REQUIRE(decode(other, *second, 1, random_tokens(8, 6)) == 0);
    REQUIRE(decode(other, *second, 0, random_tokens(8, 7)) == 0);
  }
  REQUIRE(llama_state_seq_set_data(other.context(), state.data(), state.size(), 1) != 0);
  second->load(saved, 1);
  REQUIRE(decode(other, *second, 1, {5}) == 0);
  REQUIRE(decode(ours, policy, 1, {5}) == 0);
  CHECK(difference(last_logits(other), last_logits(ours)) < tolerance);
}

TEST_CASE("a state from a fragmented cache is put in order by what its cells hold") {
  SECTION("full") { check_fragmented(presets::full{}); }
  SECTION("quest") { check_fragmented(presets::quest{.tokens = 64, .page = 8}); }
  SECTION("streaming_llm") { check_fragmented(presets::streaming_llm{.tokens = 24}); }
}

/// The caller's own, put in the place of the session's, which can't stop the engine any more.
void set_abort_callback(decoder& of) {
  llama_set_abort_callback(
      of.context(), [](void*) { return false; }, nullptr);
}

TEST_CASE("a refusal that can't stop the engine leaves it its own attention, and check() throws") {
  model_owner const model = tiny_llama();
  session policy(presets::full{});
  decoder ours(model.get(), &policy);
  decoder engine(model.get(), nullptr);
  set_abort_callback(ours);
  for (decoder* const d : {&ours, &engine}) {
    d->feed(random_tokens(60));
    REQUIRE(llama_memory_seq_rm(d->memory(), 0, 5, 9));
  }
  REQUIRE(ours.status_of({7}) == 0);
  CHECK_THROWS_WITH(policy.check(), ContainsSubstring("holes"));
  CHECK(difference(last_logits(ours), engine.feed(7)) < tolerance);
}

TEST_CASE("a step that fails half-way and can't be stopped is finished with dense attention") {
  model_owner const model = tiny_llama();
  bool failed = false;
  auto const fail_once = [&](llama_seq_id, layer_id layer, std::int64_t, selection const&) {
    if (layer.value == 1 && !std::exchange(failed, true)) throw std::runtime_error("the caller's own");
  };
  session policy(small_quest, {.on_choice = fail_once});
  decoder ours(model.get(), &policy);
  decoder engine(model.get(), nullptr);
  set_abort_callback(ours);
  for (decoder* const d : {&ours, &engine}) d->feed(random_tokens(30));
  REQUIRE(ours.status_of({1}) == 0);
  CHECK_THROWS_WITH(policy.check(), "the caller's own");
  CHECK(difference(last_logits(ours), engine.feed(1)) < tolerance);
  CHECK(difference(ours.feed(2), engine.feed(2)) < tolerance);  // 32 tokens are all that there are
}

TEST_CASE("a load is of the state that is there, not of whatever comes later") {
  model_owner const model = tiny_llama();
  session policy(small_snapkv);
  decoder ours(model.get(), &policy, unified);
  token_list const prompt = random_tokens(60, 1);
  REQUIRE(decode(ours, policy, 0, prompt) == 0);
  REQUIRE(decode(ours, policy, 1, random_tokens(20, 2)) == 0);
  std::vector<std::uint8_t> state(llama_state_seq_get_size(ours.context(), 1));
  llama_state_seq_get_data(ours.context(), state.data(), state.size(), 1);
  saved_prompt const saved = policy.save(1);
  llama_memory_seq_rm(ours.memory(), 1, -1, -1);
  REQUIRE(llama_state_seq_set_data(ours.context(), state.data(), state.size(), 1) != 0);
  policy.load(saved, 1);
  llama_memory_seq_rm(ours.memory(), 1, -1, -1);
  llama_memory_seq_cp(ours.memory(), 0, 1, -1, -1);
  REQUIRE(decode(ours, policy, 1, {5}) == 0);
  CHECK(difference(last_logits(ours), alone(model.get(), small_snapkv, prompt, 5)) < tolerance);
}

TEST_CASE("another state than the one that was saved is refused before anything is read by it") {
  model_owner const model = tiny_llama();
  saved_prompt saved;
  std::vector<std::uint8_t> state;
  {
    session first(small_quest);
    decoder one(model.get(), &first);
    one.feed(random_tokens(60, 1));
    saved = first.save();
    one.clear();
    one.feed(random_tokens(60, 2));
    state = one.state();
  }
  session second(small_quest);
  decoder other(model.get(), &second);
  other.restore(state);
  second.load(saved);
  CHECK(other.status_of({5}) == 2);
  CHECK_THROWS_AS(second.check(), unsupported);
}

TEST_CASE("a saved prompt that can't be is refused, and what was known stays known") {
  model_owner const model = tiny_llama();
  session policy(small_snapkv);
  decoder ours(model.get(), &policy);
  ours.feed(random_tokens(60, 1));
  saved_prompt const good = policy.save();
  saved_prompt bad = good;
  SECTION("a negative window") { bad.window = -1; }
  SECTION("a window that overflows") { bad.window = std::int64_t{1} << 62; }
  SECTION("tokens beyond the context") { bad.tokens = 10000; }
  SECTION("negative tokens") { bad.tokens = -5; }
  SECTION("more ids than cells") { bad.ids.resize(5000); }
  SECTION("queries cut short") { bad.queries.pop_back(); }
  SECTION("fewer fingerprints than the prompt has tokens") { bad.fingerprints.resize(3); }
  CHECK_THROWS_AS(policy.load(bad), invalid_value);
  CHECK_THROWS_AS(policy.load(good, -1), invalid_value);
  CHECK(difference(ours.feed(5), alone(model.get(), small_snapkv, random_tokens(60, 1), 5)) < tolerance);
}

TEST_CASE("a saved prompt that can't be, and meets the cache in the first graph, is refused once") {
  model_owner const model = tiny_llama();
  session policy(small_snapkv);
  policy.load({.tokens = 5, .window = 3, .queries = {1, 2, 3}});
  decoder ours(model.get(), &policy);
  CHECK(ours.status_of(random_tokens(60, 1)) == 2);
  CHECK_THROWS_AS(policy.check(), invalid_value);
  ours.clear();
  ours.feed(random_tokens(60, 1));
  CHECK(difference(ours.feed(5), alone(model.get(), small_snapkv, random_tokens(60, 1), 5)) < tolerance);
}

TEST_CASE("chess chooses once for all layers, and stands by it") {
  model_owner const model = tiny_llama();
  std::vector<made_choice> choices;
  session policy(presets::chess{.fractions = {.grids = .5f, .chunks = .2f, .pages = .1f},
                                .units = {.page = 8},
                                .recent_pages = 1,
                                .entropy = std::numeric_limits<float>::infinity(),
                                .varentropy = std::numeric_limits<float>::infinity()},
                 recording(choices));
  decoder ours(model.get(), &policy);
  ours.feed(random_tokens(300));
  decode_each(ours, random_tokens(3, 2));
  REQUIRE(choices.size() == 6);
  auto const scored = [](made_choice const& c) {
    range_list old;
    std::ranges::copy_if(c.lists.at(0), std::back_inserter(old), [](token_range const& r) { return r.why == reason::scored; });
    return old;
  };
  CHECK(!scored(choices[0]).empty());
  for (made_choice const& c : choices) CHECK(scored(c) == scored(choices[0]));
}

TEST_CASE("an unread refusal lets the engine turn its keys first") {
  model_owner const model = tiny_llama();
  session policy(presets::full{}, {.prompts = false});
  decoder ours(model.get(), &policy);
  decoder engine(model.get(), nullptr);
  for (decoder* const d : {&ours, &engine}) d->feed(random_tokens(60));
  policy.use(small_snapkv);  // saw no prompt
  CHECK(ours.status_of({1}) == 2);
  for (decoder* const d : {&ours, &engine}) llama_memory_seq_add(d->memory(), 0, 0, -1, 7);
  CHECK(ours.status_of({1}) == 2);
  CHECK(ours.status_of({1}) == 2);
  policy.detach();
  REQUIRE(ours.status_of({5}) == 0);
  CHECK(identical(last_logits(ours), engine.feed(5)));
}

TEST_CASE("llama_process is served as llama_decode is") {
  model_owner const model = tiny_llama();
  session policy(presets::full{});
  decoder ours(model.get(), &policy, unified);
  decoder engine(model.get(), nullptr, unified);
  std::vector<llama_seq_id> const whose{0, 1, 0, 1, 1, 0};
  token_list const tokens = random_tokens(6);
  for (std::int32_t turn = 0; turn < 3; ++turn) {
    policy.set_batch(whose);
    for (decoder* const d : {&ours, &engine}) {
      std::unique_ptr<llama_batch_ext, decltype(&llama_batch_ext_free)> const batch(llama_batch_ext_init(d->context()),
                                                                                    &llama_batch_ext_free);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        std::int32_t const at = llama_batch_ext_add_token(batch.get(), whose[i], tokens[i]);
        llama_pos const position = 3 * turn + static_cast<llama_pos>(std::count(
                                                  whose.begin(), whose.begin() + static_cast<std::ptrdiff_t>(i), whose[i]));
        llama_batch_ext_set_pos(batch.get(), at, &position);
        llama_batch_ext_set_output_logits(batch.get(), at, i + 1 == tokens.size());
      }
      REQUIRE(llama_process(d->context(), LLAMA_PROCESS_TYPE_DECODE, batch.get()) == 0);
    }
  }
  CHECK(difference(last_logits(ours), last_logits(engine)) < tolerance);
  REQUIRE(decode(ours, policy, 1, {5}) == 0);
  REQUIRE(engine.status_of({5}, {1}) == 0);
  CHECK(difference(last_logits(ours), last_logits(engine)) < tolerance);
  CHECK(policy.last_step(1).tokens == 10);
  CHECK_THROWS_AS(policy.set_batch(std::vector<llama_seq_id>{0, -1}), invalid_value);
}

TEST_CASE("a batch that is set while the session is detached is nobody's") {
  model_owner const model = tiny_llama();
  session policy(presets::full{});
  decoder ours(model.get(), &policy, unified);
  decoder engine(model.get(), nullptr, unified);
  policy.detach();
  policy.set_batch(std::vector<llama_seq_id>{1, 1});
  policy.use(presets::full{});
  for (decoder* const d : {&ours, &engine}) REQUIRE(d->status_of(random_tokens(40), std::vector<llama_seq_id>(40, 0)) == 0);
  CHECK(difference(ours.feed(3), engine.feed(3)) < tolerance);
}

TEST_CASE("a context made to see what fits takes nothing from the one that is used") {
  model_owner const model = tiny_llama();
  session policy(small_quest);
  llama_context_params params = parameters({});
  policy.attach(params, model.get());
  decoder first(model.get(), params);
  first.feed(random_tokens(80, 1));
  decoder second(model.get(), params);
  second.feed(random_tokens(80, 2));
  CHECK(difference(second.feed(5), alone(model.get(), small_quest, random_tokens(80, 2), 5)) < tolerance);
  CHECK(first.status_of({5}) == 2);
  CHECK_THROWS_WITH(policy.check(), ContainsSubstring("did not see written"));
}

}  // namespace
}  // namespace kvpolicy::llama::testing
