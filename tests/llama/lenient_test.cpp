// A lenient session: what can't be served is left to the engine, sequence by sequence, and said.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "serving.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr presets::quest small_quest{.tokens = 64, .page = 8};
constexpr presets::snapkv small_snapkv{.tokens = 64, .smooth = {.width = 5}, .after = 0};
constexpr double tolerance = .02;  // as in full_test.cpp

/// Two sequences with prompts, served alike.
struct pair_of_prompts {
  session policy;
  server served;

  pair_of_prompts(llama_model* model, host_policy const& p, context_options const& options)
      : policy(p, {.lenient = true}), served(model, &policy, options) {
    served.decode({{0, random_tokens(200)}, {1, random_tokens(180, 3)}});
  }
  std::vector<logits> step(llama_token a, llama_token b) { return served.decode({{0, {a}}, {1, {b}}}); }
};

template <class Preset>
host_policy of(Preset const& preset) {
  return erase<layer_table_view, simd_exec>(preset);
}

TEST_CASE("a lenient session leaves a sequence that it can't follow to the engine, and serves the others as ever") {
  model_owner const model = tiny_llama();
  context_options const options{.sequences = 2, .unified = GENERATE(true, false)};
  CAPTURE(options.unified);
  pair_of_prompts holed(model.get(), of(small_quest), options);
  pair_of_prompts whole(model.get(), of(small_quest), options);
  server engine(model.get(), nullptr, options);
  engine.decode({{0, random_tokens(200)}, {1, random_tokens(180, 3)}});
  for (server* const s : {&holed.served, &engine}) REQUIRE(llama_memory_seq_rm(s->memory(), 1, 50, 60));
  for (llama_token token = 5; token < 15; ++token) {
    std::vector<logits> const got = holed.step(token, token + 1);
    CHECK(identical(got[0], whole.step(token, token + 1)[0]));
    CHECK(difference(got[1], engine.decode({{0, {token}}, {1, {token + 1}}})[1]) < tolerance);
  }
  CHECK(holed.policy.last_step(0).tokens_read < 100);
  CHECK(holed.policy.steps(0) == 10);
  CHECK(holed.policy.steps(1) == 0);
  REQUIRE(holed.policy.report().size() == 1);
  CHECK_THAT(holed.policy.report()[0],
             ContainsSubstring("in sequence 1, until its next prompt") && ContainsSubstring("positions have holes"));
  // A prompt behind holes is the engine's too, one from the start is the policy's.
  CHECK(difference(holed.served.decode({{1, random_tokens(30, 9)}})[0], engine.decode({{1, random_tokens(30, 9)}})[0]) <
        tolerance);
  CHECK(holed.policy.report().size() == 1);
  REQUIRE(llama_memory_seq_rm(holed.served.memory(), 1, -1, -1));
  holed.served.decode({{1, random_tokens(180, 3)}});
  CHECK(holed.policy.report().empty());
  holed.step(3, 4);
  CHECK(holed.policy.last_step(1).tokens_read < 100);
  CHECK(holed.policy.steps(1) == 1);
}

TEST_CASE("a lenient session goes on without a policy that lacks what it needs, until the next prompt") {
  model_owner const model = tiny_llama();
  context_options const options{.sequences = 2, .unified = true};
  pair_of_prompts ours(model.get(), of(small_quest), options);
  server engine(model.get(), nullptr, options);
  engine.decode({{0, random_tokens(200)}, {1, random_tokens(180, 3)}});
  ours.policy.use(small_snapkv, 1);  // its prompt's queries were not kept
  for (llama_token token = 5; token < 8; ++token) {
    std::vector<logits> const got = ours.step(token, token);
    CHECK(difference(got[1], engine.decode({{0, {token}}, {1, {token}}})[1]) < tolerance);
    CHECK(ours.policy.last_step(1).tokens_read == static_cast<double>(ours.policy.last_step(1).tokens));
  }
  CHECK(ours.policy.steps(0) == 3);
  REQUIRE(ours.policy.report().size() == 1);
  CHECK_THAT(ours.policy.report()[0],
             ContainsSubstring("in sequence 1, until its next prompt") && ContainsSubstring("queries"));
  ours.served.decode({{1, random_tokens(40, 9)}});
  ours.step(1, 2);
  CHECK(ours.policy.report().empty());
  CHECK(ours.policy.last_step(1).tokens_read < 100);
}

TEST_CASE("a state that a lenient session does not know is the engine's, prompts behind it too") {
  model_owner const model = tiny_llama();
  decoder engine(model.get(), nullptr);
  engine.feed(random_tokens(150));
  session policy(small_quest, {.lenient = true});
  decoder ours(model.get(), &policy);
  ours.restore(engine.state());
  for (token_list const& tokens : {random_tokens(1), random_tokens(20, 4), random_tokens(1, 5)}) {
    CHECK(difference(ours.feed(tokens), engine.feed(tokens)) < tolerance);
  }
  REQUIRE(policy.report().size() == 1);
  CHECK_THAT(policy.report()[0], ContainsSubstring("did not see written"));
  ours.clear();
  ours.feed(random_tokens(150));
  ours.feed(2);
  CHECK(policy.report().empty());
  CHECK(policy.last_step().tokens_read < 100);
}

}  // namespace
}  // namespace kvpolicy::llama::testing
