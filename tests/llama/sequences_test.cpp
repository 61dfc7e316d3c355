// Several sequences in one context: in one batch or not, joining, leaving, sharing prefixes; each with its own policy.
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <string>

#include "kvpolicy/presets/chess.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "kvpolicy/triggers/every.hpp"
#include "serving.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr presets::quest small_quest{.tokens = 64, .page = 8};
constexpr presets::snapkv small_snapkv{.tokens = 64, .smooth = {.width = 5}, .after = 0};
constexpr double tolerance = .02;  // as in full_test.cpp

/// What happens to a server: parts that are decoded together, sequences that end, prefixes that are shared.
struct event {
  std::vector<server::part> parts{};
  llama_seq_id ends = -1;
  llama_seq_id from = -1, to = -1;  ///< llama_memory_seq_cp, the whole of it or its first `shared` tokens
  llama_pos shared = -1;
};

std::vector<logits> play(server& on, event const& what) {
  if (what.ends >= 0) REQUIRE(llama_memory_seq_rm(on.memory(), what.ends, -1, -1));
  if (what.from >= 0) llama_memory_seq_cp(on.memory(), what.from, what.to, 0, what.shared);
  return what.parts.empty() ? std::vector<logits>{} : on.decode(what.parts);
}

/// Eight requests over four sequences: they join, leave, are prompted while others decode, and share a prefix.
std::vector<event> busy_day(bool unified) {
  std::vector<event> day;
  std::uint64_t seed = 100;
  auto const steps = [&](int count, std::vector<llama_seq_id> const& of) {
    for (int i = 0; i < count; ++i) {
      event e;
      for (llama_seq_id const s : of) e.parts.push_back({s, random_tokens(1, ++seed)});
      day.push_back(e);
    }
  };
  day.push_back({.parts = {{0, random_tokens(200, 1)}, {1, random_tokens(70, 2)}}});
  steps(4, {0, 1});
  day.push_back({.parts = {{0, random_tokens(1, 50)}, {2, random_tokens(130, 3)}, {1, random_tokens(1, 51)}}});
  steps(5, {0, 1, 2});
  day.push_back({.ends = 1});
  steps(2, {2, 0});
  day.push_back({.parts = {{1, random_tokens(160, 4)}}});
  steps(3, {1});
  steps(3, {0, 1, 2});
  if (unified) day.push_back({.from = 0, .to = 3, .shared = 150});
  else day.push_back({.from = 0, .to = 3});
  day.push_back({.parts = {{3, random_tokens(40, 5)}, {0, random_tokens(1, 52)}}});
  steps(6, {3, 0, 1, 2});
  day.push_back({.ends = 0});
  day.push_back({.parts = {{0, random_tokens(33, 6)}, {3, random_tokens(1, 53)}}});
  steps(5, {2, 3, 1, 0});
  return day;
}

TEST_CASE("full equals the engine for every sequence of a busy server") {
  bool const unified = GENERATE(true, false);
  std::uint32_t const micro_batch = GENERATE(1024u, 64u);
  int const threads = GENERATE(1, 2);
  CAPTURE(unified, micro_batch, threads);
  model_owner const model = tiny_llama({.layers = 3, .q_heads = 6, .kv_heads = 2});
  context_options const options{
      .tokens = unified ? 1024u : 4096u, .micro_batch = micro_batch, .threads = threads, .sequences = 4, .unified = unified};
  server engine(model.get(), nullptr, options);
  session policy(presets::full{});
  server ours(model.get(), &policy, options);
  double apart = 0;
  for (event const& e : busy_day(unified)) {
    std::vector<logits> const expected = play(engine, e);
    std::vector<logits> const actual = play(ours, e);
    if (!expected.empty()) apart = std::max(apart, difference(actual, expected));
  }
  CAPTURE(apart);
  CHECK(apart < tolerance);
  for (llama_seq_id s = 0; s < 4; ++s) {
    CHECK(policy.last_step(s).tokens == llama_memory_seq_pos_max(ours.memory(), s) + 1);
    CHECK(policy.last_step(s).tokens_read == static_cast<double>(policy.last_step(s).tokens));
  }
}

/// A sequence's history as one token list per decode of it, from its beginning.
using history = std::vector<token_list>;

/// What each sequence was given, at the end of the day.
std::map<llama_seq_id, history> histories(std::vector<event> const& day) {
  std::map<llama_seq_id, history> all;
  for (event const& e : day) {
    if (e.ends >= 0) all.erase(e.ends);
    if (e.from >= 0) {
      history known = all[e.from];
      if (e.shared >= 0) known = {token_list(known.front().begin(), known.front().begin() + e.shared)};
      all[e.to] = known;
    }
    for (server::part const& p : e.parts) all[p.sequence].push_back(p.tokens);
  }
  return all;
}

/// How many of the choices agree, between a sequence among others and the same sequence alone.
template <class Policy>
void check_as_if_alone(Policy const& preset, bool unified) {
  model_owner const model = tiny_llama({.layers = 2, .q_heads = 4, .kv_heads = 2});
  std::vector<event> const day = busy_day(unified);
  std::map<llama_seq_id, std::vector<made_choice>> choices;
  session policy(preset, {.on_choice = [&](llama_seq_id of, layer_id layer, std::int64_t tokens, selection const& kept) {
                   choices[of].push_back({layer.value, tokens, {kept.lists().begin(), kept.lists().end()}});
                 }});
  context_options options{.tokens = unified ? 1024u : 4096u, .sequences = 4, .unified = unified};
  server together(model.get(), &policy, options);
  for (event const& e : day) play(together, e);

  for (auto const& [of, pieces] : histories(day)) {
    std::vector<made_choice> expected;
    session single(preset, recording(expected));
    decoder alone(model.get(), &single, {.tokens = 1024});
    for (token_list const& piece : pieces) alone.feed(piece);
    // From the last: the sequence had former lives, or took its first steps as another sequence.
    std::vector<made_choice> const& all = choices[of];
    std::size_t lists = 0;
    std::size_t same = 0;
    for (std::size_t i = 1; i <= std::min(all.size(), expected.size()); ++i) {
      made_choice const& a = all[all.size() - i];
      made_choice const& b = expected[expected.size() - i];
      CHECK(a.layer == b.layer);
      CHECK(a.tokens == b.tokens);
      REQUIRE(a.lists.size() == b.lists.size());
      for (std::size_t l = 0; l < a.lists.size(); ++l, ++lists) same += a.lists[l] == b.lists[l] ? 1 : 0;
    }
    CAPTURE(unified, of, lists, same);
    // The engine's matrix products round differently for different batches: a near-tie may fall the other way.
    CHECK(static_cast<double>(same) >= .97 * static_cast<double>(lists));
    CHECK(lists > 8);
  }
}

TEST_CASE("a sequence among others is chosen for as if it were alone") {
  bool const unified = GENERATE(true, false);
  SECTION("quest") { check_as_if_alone(small_quest, unified); }
  SECTION("streaming_llm") { check_as_if_alone(presets::streaming_llm{.tokens = 64}, unified); }
  SECTION("snapkv") { check_as_if_alone(small_snapkv, unified); }
  SECTION("chess") {
    check_as_if_alone(presets::chess{.fractions = {.tokens = 64}, .units = {.page = 8}, .entropy = 4, .varentropy = 4},
                      unified);
  }
}

TEST_CASE("every sequence may have a policy of its own") {
  bool const unified = GENERATE(true, false);
  model_owner const model = tiny_llama();
  context_options const options{.tokens = unified ? 1024u : 2048u, .sequences = 3, .unified = unified};
  session policy(presets::full{});
  server ours(model.get(), &policy, options);
  policy.use(small_quest, 1);
  ours.decode({{0, random_tokens(150, 1)}, {1, random_tokens(170, 2)}, {2, random_tokens(190, 3)}});
  auto const step = [&](std::uint64_t seed) {
    ours.decode({{0, random_tokens(1, seed)}, {1, random_tokens(1, seed + 1)}, {2, random_tokens(1, seed + 2)}});
  };
  step(10);
  CHECK(policy.last_step(0).tokens_read == 151);
  CHECK(policy.last_step(1).tokens_read <= 72);
  CHECK(policy.last_step(2).tokens_read == 191);
  policy.use(presets::streaming_llm{.tokens = 32}, 2);
  step(20);
  CHECK(policy.last_step(0).tokens_read == 152);
  CHECK(policy.last_step(1).tokens_read <= 72);
  CHECK(policy.last_step(2).tokens_read <= 34);
  CHECK(policy.steps(0) == 2);
  CHECK(policy.steps(2) == 1);
  policy.use(small_quest);
  step(30);
  for (llama_seq_id s = 0; s < 3; ++s) CHECK(policy.last_step(s).tokens_read <= 72);
  CHECK(policy.last_step(7).tokens == 0);
  CHECK_THROWS_AS(policy.use(small_quest, -1), invalid_value);
  CHECK_THROWS_AS(policy.use(small_quest, 1 << 30), invalid_value);
  CHECK_THROWS_AS(policy.use(presets::quest{.tokens = -5}, 1), invalid_value);
  step(40);
  CHECK(policy.last_step(1).tokens_read <= 72);
}

TEST_CASE("streams need no set_batch, and a prompt that ends in a micro-batch of one token is one prompt where there is one") {
  model_owner const model = tiny_llama();
  context_options const options{.tokens = 2048, .micro_batch = 64, .sequences = 2};
  session named(small_snapkv);
  session unnamed(small_snapkv);
  server one(model.get(), &named, options);
  server other(model.get(), &unnamed, options);
  CHECK(identical(one.decode({{1, random_tokens(200)}}), other.decode({{1, random_tokens(200)}}, false)));
  CHECK(identical(one.decode({{0, random_tokens(64 + 1)}}), other.decode({{0, random_tokens(64 + 1)}}, false)) == false);
  CHECK(named.steps(0) == 0);
  CHECK(unnamed.steps(0) == 1);
  CHECK(identical(one.decode({{1, {5}}}), other.decode({{1, {5}}}, false)));
}

TEST_CASE("a shared prefix is chosen for on both sides, whoever decodes first") {
  model_owner const model = tiny_llama();
  context_options const options{.tokens = 1024, .sequences = 2, .unified = true};
  token_list const prefix = random_tokens(200);
  auto const run = [&](std::vector<llama_seq_id> const& order) {
    session policy(small_snapkv);
    server ours(model.get(), &policy, options);
    ours.decode({{0, prefix}});
    llama_memory_seq_cp(ours.memory(), 0, 1, -1, -1);
    std::map<llama_seq_id, std::vector<logits>> all;
    for (int i = 0; i < 6; ++i) {
      for (llama_seq_id const s : order) {
        all[s].push_back(ours.decode({{s, random_tokens(1, static_cast<std::uint64_t>(10 + i + 100 * s))}}).front());
      }
    }
    CHECK(policy.last_step(0).tokens == 206);
    CHECK(policy.last_step(1).tokens == 206);
    CHECK(policy.last_step(1).tokens_read < 80);
    return all;
  };
  auto const forward = run({0, 1});
  auto const backward = run({1, 0});
  CHECK(identical(forward, backward));
  for (llama_seq_id const s : {0, 1}) {
    session policy(small_snapkv);
    decoder alone(model.get(), &policy, {.tokens = 1024});
    alone.feed(prefix);
    token_list rest;
    for (int i = 0; i < 6; ++i) rest.push_back(random_tokens(1, static_cast<std::uint64_t>(10 + i + 100 * s)).front());
    CHECK(difference(forward.at(s), decode_each(alone, rest)) < tolerance);
  }
}

TEST_CASE("a sequence whose cells another one got is learnt anew") {
  model_owner const model = tiny_llama();
  context_options const options{.tokens = 512, .sequences = 2, .unified = true};
  session policy(small_quest);
  server ours(model.get(), &policy, options);
  ours.decode({{0, random_tokens(200, 1)}});
  ours.decode({{0, {3}}});
  REQUIRE(llama_memory_seq_rm(ours.memory(), 0, -1, -1));
  ours.decode({{1, random_tokens(200, 2)}});
  ours.decode({{1, {4}}});
  llama_memory_seq_cp(ours.memory(), 1, 0, -1, -1);  // the same cells as before, other keys
  logits const after = ours.decode({{0, {5}}}).front();
  session single(small_quest);
  decoder alone(model.get(), &single, {.tokens = 512});
  alone.feed(random_tokens(200, 2));
  alone.feed(4);
  CHECK(difference(after, alone.feed(5)) < tolerance);
}

TEST_CASE("detach among sequences gives the engine's logits bit by bit") {
  bool const unified = GENERATE(true, false);
  model_owner const model = tiny_llama();
  context_options const options{.tokens = unified ? 1024u : 4096u, .sequences = 4, .unified = unified};
  server engine(model.get(), nullptr, options);
  session policy(presets::full{});
  policy.detach();
  server ours(model.get(), &policy, options);
  policy.detach();
  for (event const& e : busy_day(unified)) CHECK(identical(play(ours, e), play(engine, e)));
}

/// What snapkv answers alone to this prompt and these tokens.
logits alone_after(llama_model* model, token_list const& prompt, token_list const& rest) {
  session single(small_snapkv);
  decoder alone(model, &single, {.tokens = 1024});
  alone.feed(prompt);
  logits last;
  for (llama_token const token : rest) last = alone.feed(token);
  return last;
}

TEST_CASE("what is known of a sequence that ended is nobody's, though its cells are another one's") {
  model_owner const model = tiny_llama();
  session policy(small_snapkv);
  server ours(model.get(), &policy, {.tokens = 1024, .sequences = 3, .unified = true});
  ours.decode({{0, random_tokens(200, 1)}});
  bool const stepped = GENERATE(true, false);
  if (stepped) ours.decode({{0, {3}}});
  REQUIRE(llama_memory_seq_rm(ours.memory(), 0, -1, -1));
  ours.decode({{1, random_tokens(200, 2)}});
  llama_seq_id const to = GENERATE(0, 2);
  llama_memory_seq_cp(ours.memory(), 1, to, -1, -1);
  CHECK(difference(ours.decode({{to, {5}}}).front(), alone_after(model.get(), random_tokens(200, 2), {5})) < tolerance);
  CHECK(difference(ours.decode({{1, {5}}}).front(), alone_after(model.get(), random_tokens(200, 2), {5})) < tolerance);
}

TEST_CASE("a saved prompt is loaded into any sequence, and a state without it is refused where the prompt was needed") {
  model_owner const model = tiny_llama();
  bool const unified = GENERATE(false, true);
  context_options const options{.tokens = unified ? 1024u : 2048u, .sequences = 2, .unified = unified};
  std::vector<std::uint8_t> state;
  saved_prompt saved;
  {
    session first(small_snapkv);
    decoder prompted(model.get(), &first, options);
    prompted.feed(random_tokens(200, 2));
    state = prompted.state();
    saved = first.save();
  }
  bool const beside = GENERATE(false, true);
  bool const ended = beside && unified;
  bool const loads = GENERATE(true, false);
  CAPTURE(unified, beside, loads);
  session policy(small_snapkv);
  server ours(model.get(), &policy, options);
  if (beside) ours.decode({{0, random_tokens(200, 1)}});
  if (ended) REQUIRE(llama_memory_seq_rm(ours.memory(), 0, -1, -1));
  REQUIRE(llama_state_seq_set_data(ours.with().context(), state.data(), state.size(), 1) != 0);
  if (!loads) {
    CHECK_THROWS_WITH(ours.decode({{1, {5}}}), ContainsSubstring("did not see written"));
    return;
  }
  policy.load(saved, 1);
  CHECK(difference(ours.decode({{1, {5}}}).front(), alone_after(model.get(), random_tokens(200, 2), {5})) < tolerance);
  CHECK(policy.save(1).tokens == 200);
}

TEST_CASE("a state that was replaced before any step is noticed") {
  model_owner const model = tiny_llama();
  decoder engine(model.get(), nullptr, {.tokens = 1024});
  engine.feed(random_tokens(200, 2));
  session policy(small_snapkv);
  server ours(model.get(), &policy, {.tokens = 1024});
  ours.decode({{0, random_tokens(200, 1)}});
  ours.with().restore(engine.state());
  CHECK_THROWS_WITH(ours.decode({{0, {5}}}), ContainsSubstring("did not see written"));
}

/// Chooses anew at every step, and writes down what it observes.
struct observer {
  static constexpr signals needs = signals::logits;
  static constexpr bool while_decoding = true;
  std::vector<logits>* into = nullptr;

  static constexpr signals wants() noexcept { return needs; }
  static constexpr triggers::every::state start(cache_shape const&) noexcept { return {}; }
  static constexpr bool due(triggers::every::state const&, layer_id, head_id, std::int64_t) noexcept { return true; }
  template <class Outcome, executor Exec>
  void observe(triggers::every::state&, std::int64_t, Outcome const& outcome, Exec&) const {
    into->emplace_back(outcome.logits.begin(), outcome.logits.end());
  }
};

auto observed_quest(std::vector<logits>& into) {
  auto const quest = small_quest.parts().retrieve;
  return kvpolicy::policy{
      keep_all{}, keep{quest.segment, quest.pool, quest.score, quest.budget, quest.select, quest.window, observer{&into}}};
}

TEST_CASE("every sequence observes its own logits, whatever else is in the batch") {
  bool const unified = GENERATE(true, false);
  model_owner const model = tiny_llama();
  std::array<std::vector<logits>, 2> observed;
  session policy(presets::full{});
  server ours(model.get(), &policy, {.tokens = unified ? 1024u : 4096u, .sequences = 4, .unified = unified});
  policy.use(observed_quest(observed[0]), 0);
  policy.use(observed_quest(observed[1]), 2);
  ours.decode({{0, random_tokens(102, 1)}, {1, random_tokens(50, 2)}, {2, random_tokens(102, 3)}});
  CHECK(observed[0].empty());
  std::vector<logits> first = ours.decode({{2, {1}}, {0, {1}}});
  // Behind a prompt's piece, whose tokens have no logits but for the last.
  std::vector<logits> second = ours.decode({{3, random_tokens(7, 4)}, {0, {2}}, {1, {2}}, {2, {2}}});
  std::vector<logits> third = ours.decode({{1, {3}}, {0, {3}}, {3, {3}}});
  CHECK(identical(observed[0], {first[1], second[1], third[1]}));
  CHECK(identical(observed[1], {first[0], second[3]}));
}

TEST_CASE("a batch that was set for a decode that did not take place is not the next one's") {
  model_owner const model = tiny_llama();
  session policy(small_quest);
  server ours(model.get(), &policy, {.tokens = 512, .sequences = 2});
  ours.decode({{0, random_tokens(100, 1)}, {1, random_tokens(100, 2)}});
  llama_batch batch = llama_batch_init(300, 0, 1);
  for (std::int32_t i = 0; i < 300; ++i) {
    batch.token[i] = 5;
    batch.pos[i] = 100 + i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = i == 299;
  }
  batch.n_tokens = 300;
  policy.set_batch(batch);
  CHECK(llama_decode(ours.with().context(), batch) == 1);  // no room
  llama_batch_free(batch);
  CHECK_NOTHROW(policy.check());
  ours.decode({{0, {6}}}, false);
  CHECK(policy.steps(0) == 1);
}

TEST_CASE("a sequence that a policy can't serve stops the batch, and the engine stays as it was") {
  model_owner const model = tiny_llama();
  context_options const options{.tokens = 1024, .sequences = 2, .unified = true};
  session policy(presets::full{});
  server ours(model.get(), &policy, options);
  ours.decode({{0, random_tokens(100, 1)}, {1, random_tokens(100, 2)}});
  policy.use(small_snapkv, 1);  // which saw no prompt
  CHECK_THROWS_WITH(ours.decode({{0, {1}}, {1, {2}}}), ContainsSubstring("quer"));
  CHECK(llama_memory_seq_pos_max(ours.memory(), 0) == 99);
  CHECK(llama_memory_seq_pos_max(ours.memory(), 1) == 99);
  policy.use(small_quest, 1);
  ours.decode({{0, {1}}, {1, {2}}});
  CHECK(policy.last_step(0).tokens_read == 101);
  CHECK(policy.last_step(1).tokens_read < 80);
}

TEST_CASE("a refused sequence takes nothing from the others") {
  model_owner const model = tiny_llama();
  session policy(small_snapkv);
  server ours(model.get(), &policy, {.tokens = 1024, .sequences = 2, .unified = true});
  ours.decode({{0, random_tokens(100, 1)}, {1, random_tokens(100, 2)}});
  ours.decode({{0, {1}}, {1, {2}}});
  REQUIRE(llama_memory_seq_rm(ours.memory(), 1, 50, 60));
  CHECK_THROWS_WITH(ours.decode({{0, {1}}, {1, {2}}}), ContainsSubstring("holes"));
  REQUIRE(llama_memory_seq_rm(ours.memory(), 1, -1, -1));
  CHECK(difference(ours.decode({{0, {1}}}).front(), alone_after(model.get(), random_tokens(100, 1), {1, 1})) < tolerance);
}

}  // namespace
}  // namespace kvpolicy::llama::testing
