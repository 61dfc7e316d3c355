// Every kind of attention that the engine has, against the engine: what a session serves of it, and what it leaves.
#include "model_kinds.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>

#include "decoding.hpp"
#include "kvpolicy/presets/expected_attention.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

struct kind {
  char const* name;
  model_owner (*make)();
  std::int64_t layers;  ///< that policies act on
  char const* left;     ///< of the report's only line; null: there is none
};

constexpr kind kinds[] = {
    {"window pattern", tiny_window_pattern, 2, "10 of 12 attention layers are the engine's: sliding windows of 64 tokens"},
    {"sliding window", tiny_sliding_window, 1, "1 of 2 attention layers are the engine's: sliding windows of 64 tokens"},
    {"soft cap", tiny_soft_capped, 2, "2 of 4 attention layers are the engine's: sliding windows of 64 tokens"},
    {"sinks", tiny_attention_sinks, 2, "2 of 4 attention layers are the engine's: sliding windows of 64 tokens"},
    {"ALiBi", tiny_alibi, 4, nullptr},
    {"unequal heads", tiny_unequal_heads, 3, "1 of 4 attention layers are the engine's: other heads than most layers have"},
    {"short convolutions", tiny_short_convolution, 2, nullptr},
    {"state space", tiny_state_space, 2, nullptr},
};

// The engine rounds queries to the cache's f16, and adds values up in it: see full_test. The kinds' own two kernels, flash
// attention and without, differ by up to .011.
constexpr double tolerance = .025;

context_options const pieces{.micro_batch = 128, .threads = 2};

llama_context_params parameters_of(bool whole_window_cache, context_options const& options = pieces) {
  llama_context_params params = parameters(options);
  params.swa_full = whole_window_cache;
  return params;
}

TEST_CASE("full equals the engine's logits on every kind of model") {
  kind const of = GENERATE(from_range(std::begin(kinds), std::end(kinds)));
  bool const whole_window_cache = GENERATE(false, true);
  bool const prompts = GENERATE(true, false);
  model_owner const model = of.make();
  llama_context_params params = parameters_of(whole_window_cache);
  decoder engine(model.get(), params);
  std::int64_t layers = 0;
  session policy(presets::full{},
                 {.prompts = prompts, .on_choice = [&](llama_seq_id, layer_id, std::int64_t, selection const&) { ++layers; }});
  policy.attach(params, model.get());
  decoder ours(model.get(), params);
  token_list const tokens = random_tokens(330);
  token_list const prompt(tokens.begin(), tokens.begin() + 300);
  token_list const rest(tokens.begin() + 300, tokens.end());
  double const prompts_apart = difference(ours.feed(prompt), engine.feed(prompt));
  double const steps_apart = difference(decode_each(ours, rest), decode_each(engine, rest));
  CAPTURE(of.name, whole_window_cache, prompts, prompts_apart, steps_apart);
  CHECK(prompts_apart < tolerance);
  CHECK(steps_apart < tolerance);
  CHECK(policy.steps() == 30);
  CHECK(layers == 30 * of.layers);
  CHECK(policy.last_step().tokens_read == 330);
  REQUIRE(policy.report().size() == (of.left != nullptr ? 1 : 0));
  if (of.left != nullptr) CHECK(policy.report().front() == of.left);
  policy.detach();
  CHECK(difference(ours.feed(7), engine.feed(7)) < tolerance);
}

TEST_CASE("policies choose on every kind of model, and what follows from the choice is not the whole") {
  kind const of = GENERATE(from_range(std::begin(kinds), std::end(kinds)));
  model_owner const model = of.make();
  token_list const tokens = random_tokens(330);
  auto const read = [&](auto const& preset) {
    llama_context_params params = parameters_of(false);
    session policy(preset);
    policy.attach(params, model.get());
    decoder ours(model.get(), params);
    ours.feed(token_list(tokens.begin(), tokens.begin() + 300));
    logits last;
    for (std::size_t t = 300; t < tokens.size(); ++t) last = ours.feed(tokens[t]);
    CAPTURE(of.name);
    CHECK(policy.last_step().tokens_read < 130);
    CHECK(policy.last_step().tokens_read >= 32);
    return last;
  };
  llama_context_params params = parameters_of(false);
  decoder engine(model.get(), params);
  engine.feed(token_list(tokens.begin(), tokens.begin() + 300));
  logits whole;
  for (std::size_t t = 300; t < tokens.size(); ++t) whole = engine.feed(tokens[t]);
  CHECK(difference(read(presets::snapkv{.tokens = 64, .after = 0}), whole) > .02);
  CHECK(difference(read(presets::quest{.tokens = 64}), whole) > .02);
  CHECK(difference(read(presets::streaming_llm{.tokens = 64}), whole) > .02);
}

// What streaming_llm keeps is what is left after seq_rm of the rest: the engine itself says what its logits are. ALiBi's
// distances stay, since positions do.
TEST_CASE("a choice under ALiBi is what the engine computes over those tokens alone") {
  model_owner const model = tiny_alibi();
  token_list const tokens = random_tokens(200);
  decoder engine(model.get(), nullptr);
  engine.feed(tokens);
  REQUIRE(llama_memory_seq_rm(engine.memory(), 0, 4, 200 - 59));
  session policy(presets::streaming_llm{.tokens = 64, .sinks = 4});
  decoder ours(model.get(), &policy);
  ours.feed(tokens);
  double const apart = difference(ours.feed(9), engine.feed(9));
  CAPTURE(apart, policy.last_step().tokens_read);
  CHECK(apart < tolerance);
}

TEST_CASE("keys that several layers share are the engine's") {
  model_owner const model = tiny_shared_cache();
  llama_context_params params = parameters_of(false);
  decoder engine(model.get(), params);
  session policy(presets::full{});
  policy.attach(params, model.get());
  decoder ours(model.get(), params);
  CHECK(difference(ours.feed(random_tokens(200)), engine.feed(random_tokens(200))) < tolerance);
  CHECK(difference(ours.feed(3), engine.feed(3)) < tolerance);
  CHECK(policy.steps() == 1);
  REQUIRE(policy.report().size() == 2);
  CHECK_THAT(policy.report()[0] + policy.report()[1], ContainsSubstring("keys and values that several layers share"));
}

TEST_CASE("a model without a layer that can be served is refused, or left alone") {
  model_owner const model = tiny_windows_only();
  llama_context_params params = parameters_of(false);
  session strict(presets::full{});
  CHECK_THROWS_WITH(strict.attach(params, model.get()),
                    ContainsSubstring("no layer can be served: 2 of 2 attention layers are the engine's: sliding windows"));
  CHECK(params.cb_eval == nullptr);
  session lenient(presets::full{}, {.lenient = true});
  lenient.attach(params, model.get());
  decoder ours(model.get(), params);
  decoder engine(model.get(), parameters_of(false));
  CHECK(identical(ours.feed(random_tokens(100)), engine.feed(random_tokens(100))));
  CHECK(identical(ours.feed(5), engine.feed(5)));
  REQUIRE(lenient.report().size() == 1);
  CHECK_THAT(lenient.report()[0], ContainsSubstring("all is the engine's: no layer can be served"));
  CHECK_NOTHROW(lenient.check());
}

TEST_CASE("a lenient session lets the engine go on where it can't, and says why") {
  model_owner const model = tiny_llama();
  session policy(presets::quest{.tokens = 64}, {.lenient = true});
  decoder ours(model.get(), &policy);
  decoder engine(model.get(), nullptr);
  for (decoder* const d : {&ours, &engine}) {
    d->feed(random_tokens(200));
    REQUIRE(llama_memory_seq_rm(d->memory(), 0, 50, 60));
  }
  CHECK(policy.report().empty());
  CHECK(difference(ours.feed(9), engine.feed(9)) < tolerance);
  CHECK(difference(ours.feed(10), engine.feed(10)) < tolerance);
  REQUIRE(policy.report().size() == 1);
  CHECK_THAT(policy.report()[0], ContainsSubstring("the engine goes on alone: ") && ContainsSubstring("positions have holes"));
  CHECK_NOTHROW(policy.check());
  ours.clear();
  policy.use(presets::quest{.tokens = 64});
  CHECK(policy.report().empty());
  ours.feed(random_tokens(200));
  ours.feed(9);
  CHECK(policy.last_step().tokens_read < 100);
}

// A recurrent state can't go back by a token.
TEST_CASE("a refused step of a hybrid model says that all must be cleared, and that is enough") {
  model_owner (*const make)() = GENERATE(&tiny_short_convolution, &tiny_state_space);
  model_owner const model = make();
  session policy(presets::full{});
  decoder ours(model.get(), &policy);
  decoder engine(model.get(), nullptr);
  for (decoder* const d : {&ours, &engine}) d->feed(random_tokens(120));
  policy.use(presets::snapkv{.tokens = 64, .after = 0});
  CHECK(ours.status_of({9}) == 2);
  CHECK_THROWS_WITH(policy.check(), ContainsSubstring("queries") && ContainsSubstring("llama_memory_clear()"));
  policy.use(presets::full{});
  for (decoder* const d : {&ours, &engine}) {
    d->clear();
    d->feed(random_tokens(130, 5));
  }
  double const apart = difference(ours.feed(9), engine.feed(9));
  CAPTURE(apart);
  CHECK(apart < tolerance);
}

// The windowed layers turn keys by another base than those that are served.
TEST_CASE("the rotary embedding is that of the layers that are served") {
  model_owner const model = tiny_window_pattern();
  llama_context_params params = parameters_of(false);
  session policy(presets::expected_attention{.tokens = 64});
  policy.attach(params, model.get());
  decoder ours(model.get(), params);
  ours.feed(random_tokens(200));
  ours.feed(9);
  CHECK(policy.last_step().tokens_read < 100);
}

TEST_CASE("ALiBi beside holes in the positions is refused") {
  model_owner const model = tiny_alibi();
  session policy(presets::full{});
  decoder ours(model.get(), &policy);
  ours.feed(random_tokens(100));
  REQUIRE(llama_memory_seq_rm(ours.memory(), 0, 20, 30));
  CHECK(ours.status_of({5}) == 2);
  CHECK_THROWS_AS(policy.check(), unsupported);
}

}  // namespace
}  // namespace kvpolicy::llama::testing
