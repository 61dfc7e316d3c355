// What a caller does with one context over its life: new prompts, other policies, tails removed, threads changed.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>
#include <type_traits>

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

constexpr presets::quest small_quest{.tokens = 64, .page = 8};
constexpr presets::snapkv small_snapkv{.tokens = 64, .smooth = {.width = 5}, .after = 0};
constexpr presets::streaming_llm small_streaming{.tokens = 64};
constexpr presets::chess small_chess{.fractions = {.grids = .5f, .chunks = .2f, .pages = .1f},
                                     .units = {.page = 8, .pages_per_chunk = 4, .chunks_per_grid = 2},
                                     .recent_pages = 2,
                                     .entropy = std::numeric_limits<float>::infinity(),
                                     .varentropy = std::numeric_limits<float>::infinity()};

/// One context with its session, and what it chose.
template <class Policy>
struct attached {
  std::vector<made_choice> choices;
  session policy;
  decoder engine;

  attached(llama_model* model, Policy const& preset, context_options const& options = {}, std::int64_t window = 0)
      : policy(preset, recording(choices, window)), engine(model, &policy, options) {}
};

/// Both decode the same tokens alike, to the bit, and choose alike.
template <class A, class B>
void check_alike(A& one, B& other, token_list const& tokens) {
  one.choices.clear();
  other.choices.clear();
  CHECK(identical(decode_each(one.engine, tokens), decode_each(other.engine, tokens)));
  CHECK(identical(one.choices, other.choices));
  CHECK(std::ssize(one.choices) == 2 * std::ssize(tokens));
}

template <class Policy>
void check_second_prompt(Policy const& preset) {
  model_owner const model = tiny_llama();
  attached used(model.get(), preset);
  attached fresh(model.get(), preset);
  used.engine.feed(random_tokens(300));
  decode_each(used.engine, random_tokens(10, 3));
  std::int64_t const length = GENERATE(200, 300, 420);
  used.engine.clear();
  CHECK(identical(used.engine.feed(random_tokens(length, 5)), fresh.engine.feed(random_tokens(length, 5))));
  check_alike(used, fresh, random_tokens(10, 4));
}

TEST_CASE("a second prompt is decoded as the first of a fresh session") {
  SECTION("full") { check_second_prompt(presets::full{}); }
  SECTION("quest") { check_second_prompt(small_quest); }
  SECTION("snapkv") { check_second_prompt(small_snapkv); }
  SECTION("streaming_llm") { check_second_prompt(small_streaming); }
  SECTION("chess") { check_second_prompt(small_chess); }
}

template <class Policy>
void check_use(Policy const& preset) {
  model_owner const model = tiny_llama();
  attached used(model.get(), presets::streaming_llm{.tokens = 32});
  attached fresh(model.get(), preset);
  used.engine.feed(random_tokens(300));
  decode_each(used.engine, random_tokens(10, 3));
  used.policy.use(preset);
  used.engine.clear();
  used.engine.feed(random_tokens(250, 5));
  fresh.engine.feed(random_tokens(250, 5));
  check_alike(used, fresh, random_tokens(10, 4));
}

double entropy_of(logits const& step) {
  double sum = 0;
  double weighted = 0;
  for (float const value : step) {
    sum += std::exp(static_cast<double>(value));
    weighted += std::exp(static_cast<double>(value)) * static_cast<double>(value);
  }
  return std::log(sum) - weighted / sum;
}

TEST_CASE("chess's uncertainty of a new request does not count the tokens of the one before") {
  model_owner const model = tiny_llama();
  token_list const first = random_tokens(5, 3);  // leaves a page open
  token_list const tokens = random_tokens(20, 4);
  presets::chess preset = small_chess;
  preset.fractions = {.grids = 1, .chunks = .5f, .pages = .3f};
  double entropies[2] = {0, 0};  // of the steps before the new request, and of its first page
  {
    attached probe(model.get(), preset);
    probe.engine.feed(random_tokens(200));
    for (logits const& step : decode_each(probe.engine, first)) entropies[0] += entropy_of(step);
    probe.engine.clear();
    probe.engine.feed(random_tokens(200, 5));
    for (logits const& step : decode_each(probe.engine, token_list(tokens.begin(), tokens.begin() + 8))) {
      entropies[1] += entropy_of(step);
    }
  }
  // A threshold between the page's own mean and the mean over both.
  preset.entropy = static_cast<float>((entropies[1] / 8 + (entropies[0] + entropies[1]) / 13) / 2);
  CAPTURE(entropies[0] / 5, entropies[1] / 8);
  attached used(model.get(), preset);
  attached fresh(model.get(), preset);
  used.engine.feed(random_tokens(200));
  decode_each(used.engine, first);
  used.engine.clear();
  used.engine.feed(random_tokens(200, 5));
  fresh.engine.feed(random_tokens(200, 5));
  check_alike(used, fresh, tokens);
}

TEST_CASE("another policy serves the next request as a fresh session does") {
  SECTION("full") { check_use(presets::full{}); }
  SECTION("quest") { check_use(small_quest); }
  SECTION("snapkv") { check_use(small_snapkv); }
  SECTION("streaming_llm") { check_use(small_streaming); }
  SECTION("chess") { check_use(small_chess); }
}

TEST_CASE("a policy named before the first decode is the one that runs") {
  model_owner const model = tiny_llama();
  attached changed(model.get(), presets::full{});
  attached fresh(model.get(), small_snapkv);
  changed.policy.use(small_snapkv);
  changed.engine.feed(random_tokens(250));
  fresh.engine.feed(random_tokens(250));
  check_alike(changed, fresh, random_tokens(10, 4));
}

TEST_CASE("snapkv after a change of policy uses the prompt's queries if the session kept them, at the next prompt") {
  model_owner const model = tiny_llama();
  attached changed(model.get(), small_quest, {}, 16);
  changed.engine.feed(random_tokens(250));
  decode_each(changed.engine, random_tokens(5, 3));
  saved_prompt const kept = changed.policy.save();
  CHECK(kept.tokens == 250);
  CHECK(kept.window == 16);
  CHECK(kept.queries.size() == 2u * 16 * 4 * 32);
  changed.policy.use(small_snapkv);  // must see a prompt first
  CHECK(changed.engine.status_of({1}) == 2);
  CHECK_THROWS_AS(changed.policy.check(), unsupported);
  attached fresh(model.get(), small_snapkv);
  changed.engine.clear();
  changed.engine.feed(random_tokens(250));
  fresh.engine.feed(random_tokens(250));
  check_alike(changed, fresh, random_tokens(10, 4));
}

/// What was evicted does not come back, where a fresh session would never have evicted it.
template <class Policy>
constexpr bool evicts = std::is_same_v<Policy, presets::streaming_llm>;

template <class Policy>
void check_cut_of_generated(Policy const& preset) {
  model_owner const model = tiny_llama();
  attached cut(model.get(), preset);
  attached fresh(model.get(), preset);
  token_list const generated = random_tokens(20, 3);
  token_list const stays(generated.begin(), generated.begin() + 6);
  cut.engine.feed(random_tokens(246));
  fresh.engine.feed(random_tokens(246));
  decode_each(cut.engine, generated);  // over the graph's boundary
  decode_each(fresh.engine, stays);
  REQUIRE(cut.engine.cut(246 + 6));
  if constexpr (!evicts<Policy>) {
    SECTION("one token at a time") { check_alike(cut, fresh, random_tokens(20, 4)); }
  }
  SECTION("a batch of tokens first") {
    CHECK(identical(cut.engine.feed(random_tokens(40, 5)), fresh.engine.feed(random_tokens(40, 5))));
    check_alike(cut, fresh, random_tokens(20, 4));
  }
}

TEST_CASE("after the tail of what was generated is removed, decoding goes on as in a fresh session") {
  SECTION("full") { check_cut_of_generated(presets::full{}); }
  SECTION("quest") { check_cut_of_generated(small_quest); }
  SECTION("snapkv") { check_cut_of_generated(small_snapkv); }
  SECTION("streaming_llm") { check_cut_of_generated(small_streaming); }
  SECTION("chess") { check_cut_of_generated(small_chess); }
}

/// The prompt's first 201 tokens stay, and are a micro-batch of their own in both, so that the cells are alike to the bit.
template <class Policy>
void check_cut_of_prompt(Policy const& preset, bool by_token) {
  model_owner const model = tiny_llama();
  attached cut(model.get(), preset);
  attached fresh(model.get(), preset);
  token_list const prompt = random_tokens(301);
  token_list const head(prompt.begin(), prompt.begin() + 201);
  cut.engine.feed(head);
  cut.engine.feed(token_list(prompt.begin() + 201, prompt.end()));
  decode_each(cut.engine, random_tokens(5, 3));
  fresh.engine.feed(head);
  REQUIRE(cut.engine.cut(201));
  if (!by_token) CHECK(identical(cut.engine.feed(random_tokens(50, 5)), fresh.engine.feed(random_tokens(50, 5))));
  check_alike(cut, fresh, random_tokens(20, 4));
}

TEST_CASE("after the tail of the prompt is removed, a batch and decoding go on as in a fresh session") {
  SECTION("full") { check_cut_of_prompt(presets::full{}, false); }
  SECTION("quest") { check_cut_of_prompt(small_quest, false); }
  SECTION("snapkv") { check_cut_of_prompt(small_snapkv, false); }
  SECTION("streaming_llm") { check_cut_of_prompt(small_streaming, false); }
  SECTION("chess") { check_cut_of_prompt(small_chess, false); }
}

// snapkv's and chess's choice among the longer prompt stands here, by policy_state::truncate's contract.
TEST_CASE("after the tail of the prompt is removed, decoding goes on as in a fresh session where choices are made each step") {
  SECTION("full") { check_cut_of_prompt(presets::full{}, true); }
  SECTION("quest") { check_cut_of_prompt(small_quest, true); }
}

/// The sinks, and everything from `first` on.
std::vector<std::int64_t> sinks_and_rest(std::int64_t first, std::int64_t tokens) {
  std::vector<std::int64_t> made{0, 1, 2, 3};
  for (std::int64_t t = first; t < tokens; ++t) made.push_back(t);
  return made;
}

// Of 64 tokens four are sinks: before the cut everything but those and the last 60 tokens was evicted, and is so for good.
TEST_CASE("after a tail was removed streaming_llm reads what is left, and nothing that it has evicted") {
  model_owner const model = tiny_llama();
  attached cut(model.get(), small_streaming);
  cut.engine.feed(random_tokens(246));
  decode_each(cut.engine, random_tokens(20, 3));
  std::int64_t const stays = GENERATE(252, 207, 206, 100, 3);
  std::int64_t const evicted = 246 + 20 - 60;  // tokens before this one
  REQUIRE(cut.engine.cut(static_cast<llama_pos>(stays)));
  cut.choices.clear();
  decode_each(cut.engine, random_tokens(80, 4));
  REQUIRE(cut.choices.size() == 2 * 80);
  for (made_choice const& made : cut.choices) {
    REQUIRE(made.lists.size() == 1);
    std::vector<std::int64_t> read;
    for (token_range const& range : made.lists[0]) {
      for (std::int64_t t = range.begin; t < range.end; ++t) read.push_back(t);
    }
    std::int64_t const left = std::max<std::int64_t>(std::min(stays, evicted), 4);
    CAPTURE(stays, made.tokens);
    REQUIRE(identical(read, sinks_and_rest(std::max(left, made.tokens - 60), made.tokens)));
  }
}

TEST_CASE("full follows the engine after tails were removed") {
  model_owner const model = tiny_llama();
  session policy(presets::full{});
  decoder ours(model.get(), &policy);
  decoder engine(model.get(), nullptr);
  for (decoder* const each : {&ours, &engine}) {
    each->feed(random_tokens(300));
    decode_each(*each, random_tokens(10, 3));
    REQUIRE(each->cut(280));
    each->feed(random_tokens(30, 4));
    REQUIRE(each->cut(305));
  }
  CHECK(difference(decode_each(ours, random_tokens(10, 5)), decode_each(engine, random_tokens(10, 5))) < .02);
}

TEST_CASE("a request of several batches with decoding between them goes on") {
  model_owner const model = tiny_llama();
  std::vector<made_choice> choices;
  session policy(small_quest, recording(choices));
  decoder ours(model.get(), &policy);
  session fresh(small_quest);
  decoder other(model.get(), &fresh);
  for (std::uint64_t turn = 1; turn <= 4; ++turn) {
    ours.feed(random_tokens(60, turn));
    decode_each(ours, random_tokens(12, 10 + turn));
  }
  other.restore(ours.state());
  fresh.load(policy.save());
  CHECK(identical(decode_each(ours, random_tokens(10, 3)), decode_each(other, random_tokens(10, 3))));
}

TEST_CASE("the number of threads may change between any two steps") {
  model_owner const model = tiny_llama();
  attached changing(model.get(), small_quest, {.threads = 1});
  attached steady(model.get(), small_quest, {.threads = 1});
  changing.engine.feed(random_tokens(250));
  steady.engine.feed(random_tokens(250));
  token_list const tokens = random_tokens(12, 3);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    llama_set_n_threads(changing.engine.context(), i % 4 < 2 ? 2 : 1, 1);
    CHECK(identical(changing.engine.feed(tokens[i]), steady.engine.feed(tokens[i])));
  }
  CHECK(identical(changing.choices, steady.choices));
}

TEST_CASE("quest learns the keys anew after llama_memory_seq_add turned them") {
  model_owner const model = tiny_llama();
  attached shifted(model.get(), small_quest);
  attached fresh(model.get(), small_quest);
  shifted.engine.feed(random_tokens(250));
  decode_each(shifted.engine, random_tokens(5, 3));
  llama_memory_seq_add(shifted.engine.memory(), 0, 0, -1, 300);
  shifted.engine.feed(1);
  REQUIRE(llama_memory_seq_pos_max(shifted.engine.memory(), 0) == 555);
  fresh.engine.restore(shifted.engine.state());
  fresh.policy.load({.tokens = 256});
  check_alike(shifted, fresh, random_tokens(10, 4));
}

// As a server does: the prompt is there but for its last token, and that comes alone.
template <class Preset>
void reads_the_same_again(Preset const& preset) {
  model_owner const model = tiny_llama();
  attached again(model.get(), preset);
  token_list const prompt = random_tokens(250);
  std::vector<double> first;
  for (int request = 0; request < 3; ++request) {
    if (request == 0) again.engine.feed(prompt);
    else {
      REQUIRE(again.engine.cut(249));
      again.engine.feed(prompt.back());
    }
    std::vector<double> read;
    for (llama_token const token : random_tokens(25, 3)) {
      again.engine.feed(token);
      read.push_back(again.policy.last_step().tokens_read);
    }
    if (request == 0) first = read;
    else CHECK(read == first);
  }
  CHECK(first[5] == 256);  // while it waits it reads everything
  CHECK(first[20] < 128);
}

TEST_CASE("a request that comes again waits again for its answer's first tokens") {
  SECTION("quest") { reads_the_same_again(presets::quest{.tokens = 64, .after = 16}); }
  SECTION("snapkv") { reads_the_same_again(presets::snapkv{.tokens = 64, .after = 16}); }
  SECTION("both") { reads_the_same_again(presets::snapkv{.tokens = 96, .after = 16} + presets::quest{.tokens = 48}); }
  SECTION("chess") {
    presets::chess waiting = small_chess;
    waiting.after = 16;
    reads_the_same_again(waiting);
  }
}

TEST_CASE("tokens that see those behind them are refused by their name") {
  model_owner const model = tiny_llama();
  attached seeing(model.get(), small_quest);
  seeing.engine.feed(random_tokens(100));
  llama_set_causal_attn(seeing.engine.context(), false);
  CHECK_THROWS_WITH(seeing.engine.feed(random_tokens(10, 4)), ContainsSubstring("see those behind them"));
  llama_set_causal_attn(seeing.engine.context(), true);
}

TEST_CASE("a prompt of one token is a step like any other") {
  model_owner const model = tiny_llama();
  attached used(model.get(), small_quest);
  attached fresh(model.get(), small_quest);
  used.engine.feed(random_tokens(300));
  decode_each(used.engine, random_tokens(10, 3));
  used.engine.clear();
  check_alike(used, fresh, random_tokens(100, 4));
}

}  // namespace
}  // namespace kvpolicy::llama::testing
