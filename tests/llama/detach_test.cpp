// A detached session leaves nothing behind: the engine's results are bit-identical to those of a context without one.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "decoding.hpp"
#include "kvpolicy/presets/chess.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

template <class Policy>
void check_detached(Policy const& preset, context_options const& options) {
  model_owner const model = tiny_llama();
  token_list const prompt = random_tokens(240);
  token_list const rest = random_tokens(30, 3);  // a graph boundary lies within
  decoder engine(model.get(), nullptr, options);
  session policy(preset);
  decoder ours(model.get(), &policy, options);

  ours.feed(prompt);
  decode_each(ours, rest);
  policy.detach();
  // The same state in both, right after a policy step: the next graph is the last one again, restored.
  engine.feed(prompt);
  decode_each(engine, rest);
  engine.restore(ours.state());
  CHECK(identical(decode_each(ours, rest), decode_each(engine, rest)));
  CHECK(policy.steps() == 30);

  // A new prompt.
  engine.clear();
  ours.clear();
  CHECK(identical(ours.feed(prompt), engine.feed(prompt)));
  CHECK(identical(decode_each(ours, rest), decode_each(engine, rest)));

  // Attached again, and detached again.
  policy.use(presets::quest{.tokens = 64});
  ours.clear();
  ours.feed(prompt);
  decode_each(ours, rest);
  CHECK(policy.steps() == 30);
  policy.detach();
  ours.cut(200);
  engine.restore(ours.state());
  CHECK(identical(decode_each(ours, rest), decode_each(engine, rest)));
  CHECK_NOTHROW(policy.check());
}

TEST_CASE("after detach the engine computes bit by bit what it computes without a session") {
  context_options const options{.threads = GENERATE(1, 2), .type = GENERATE(GGML_TYPE_F16, GGML_TYPE_BF16)};
  SECTION("full") { check_detached(presets::full{}, options); }
  SECTION("quest") { check_detached(presets::quest{.tokens = 64}, options); }
  SECTION("snapkv") { check_detached(presets::snapkv{.tokens = 64, .after = 0}, options); }
  SECTION("streaming_llm") { check_detached(presets::streaming_llm{.tokens = 64}, options); }
  SECTION("chess") { check_detached(presets::chess{.fractions = {.tokens = 64}}, options); }
}

TEST_CASE("a session detached from the start passes everything through") {
  model_owner const model = tiny_llama();
  int const threads = GENERATE(1, 2);
  decoder engine(model.get(), nullptr, {.threads = threads});
  session policy(presets::quest{.tokens = 64});
  decoder ours(model.get(), &policy, {.threads = threads});
  policy.detach();
  CHECK(identical(ours.feed(random_tokens(250)), engine.feed(random_tokens(250))));
  CHECK(identical(decode_each(ours, random_tokens(20, 3)), decode_each(engine, random_tokens(20, 3))));
  CHECK(policy.steps() == 0);
}

TEST_CASE("a session that is used again after pass-through steps chooses what a fresh one chooses") {
  model_owner const model = tiny_llama();
  std::vector<made_choice> choices;
  std::vector<made_choice> fresh_choices;
  session policy(presets::full{}, recording(choices));
  session fresh(presets::quest{.tokens = 64}, recording(fresh_choices));
  decoder ours(model.get(), &policy);
  decoder other(model.get(), &fresh);
  ours.feed(random_tokens(200));
  policy.detach();
  decode_each(ours, random_tokens(10, 3));
  CHECK(choices.empty());
  policy.use(presets::quest{.tokens = 64});
  other.restore(ours.state());
  fresh.load({.tokens = 210});
  CHECK(identical(decode_each(ours, random_tokens(20, 4)), decode_each(other, random_tokens(20, 4))));
  CHECK(identical(choices, fresh_choices));
  CHECK(choices.size() == 40);
}

TEST_CASE("detach and use alternate at every step without losing track") {
  model_owner const model = tiny_llama();
  session policy(presets::full{});
  decoder ours(model.get(), &policy);
  decoder engine(model.get(), nullptr);
  ours.feed(random_tokens(250));
  engine.feed(random_tokens(250));
  for (llama_token const token : random_tokens(16, 3)) {
    policy.use(presets::quest{.tokens = 64});
    ours.feed(token);
    CHECK(policy.steps() == 1);
    engine.restore(ours.state());
    policy.detach();
    CHECK(identical(ours.feed(token), engine.feed(token)));
  }
}

}  // namespace
}  // namespace kvpolicy::llama::testing
