// What prompts read while they are read.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <vector>

#include "decoding.hpp"
#include "kvpolicy/interop/llama/statistics.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

constexpr double tolerance = .02;  // see full_test

prompt_pages small() {
  return {.share = .1, .least = 32, .page = 16, .sinks = 16, .recent = 64, .from = 256, .block = 64, .every = 8};
}

TEST_CASE("a prompt policy reads less of a long prompt, and other logits come of it") {
  int const threads = GENERATE(1, 2);
  std::uint32_t const micro_batch = GENERATE(1024u, 96u);
  model_owner const model = tiny_llama();
  context_options const options{.micro_batch = micro_batch, .threads = threads};
  token_list const prompt = random_tokens(1000);
  decoder engine(model.get(), nullptr, options);
  session policy(presets::full{}, {.prompt_policy = small()});
  decoder ours(model.get(), &policy, options);
  double const apart = difference(ours.feed(prompt), engine.feed(prompt));
  CAPTURE(threads, micro_batch, apart);
  CHECK(apart > tolerance);
  prompt_statistics const read = policy.prompts();
  CHECK(read.read > 0);
  CHECK(read.read < .6 * read.pairs);
  CHECK(read.choose_seconds > 0);
  CHECK(difference(ours.feed(3), engine.feed(3)) > tolerance);  // steps read all, of rows that came out otherwise
  CHECK(policy.last_step().tokens_read == 1001);
}

TEST_CASE("a prompt policy with a share of 1, or for longer prompts, changes nothing") {
  model_owner const model = tiny_llama();
  token_list const prompt = random_tokens(900);
  decoder engine(model.get(), nullptr);
  logits const wanted = engine.feed(prompt);
  prompt_pages whole = small();
  whole.share = 1;
  prompt_pages later = small();
  later.from = 1000;
  for (prompt_pages const& how : {whole, later}) {
    session policy(presets::full{}, {.prompt_policy = how});
    decoder ours(model.get(), &policy);
    CHECK(difference(ours.feed(prompt), wanted) < tolerance);
    CHECK(policy.prompts().read == policy.prompts().pairs);
  }
}

TEST_CASE("a prompt policy reads what is there: after a cut as in a fresh context") {
  model_owner const model = tiny_llama();
  token_list const first = random_tokens(600);
  token_list second = random_tokens(320);
  token_list const other = random_tokens(500, 9);
  second.insert(second.end(), other.begin(), other.end());
  session once(presets::full{}, {.prompt_policy = small()});
  decoder fresh(model.get(), &once);
  logits const wanted = fresh.feed(second);
  session twice(presets::full{}, {.prompt_policy = small()});
  decoder used(model.get(), &twice);
  used.feed(first);
  REQUIRE(used.cut(320));
  CHECK(difference(used.feed(other), wanted) < tolerance);
  used.clear();
  CHECK(identical(used.feed(second), wanted));
}

TEST_CASE("each sequence's prompt is read by its own pages") {
  model_owner const model = tiny_llama();
  context_options const options{.tokens = 2048, .batch = 2048, .sequences = 2};
  token_list const one = random_tokens(700, 3);
  token_list const two = random_tokens(700, 4);
  auto const logits_of = [&](token_list const& tokens) {
    session policy(presets::full{}, {.prompt_policy = small()});
    decoder alone(model.get(), &policy, {.tokens = 1024});
    return alone.feed(tokens);
  };
  session policy(presets::full{}, {.prompt_policy = small()});
  decoder both(model.get(), &policy, options);
  token_list mixed;
  std::vector<llama_seq_id> owners;
  for (std::size_t i = 0; i < one.size(); ++i) {
    mixed.insert(mixed.end(), {one[i], two[i]});
    owners.insert(owners.end(), {0, 1});
  }
  token_list const last{mixed[mixed.size() - 2], mixed.back()};
  REQUIRE(both.status_of(mixed, owners) == 0);
  float const* const got = llama_get_logits_ith(both.context(), static_cast<std::int32_t>(mixed.size()) - 1);
  CHECK(difference(logits(got, got + tiny_vocabulary), logits_of(two)) < tolerance);
  CHECK(policy.prompts(0).read < policy.prompts(0).pairs);
  CHECK(policy.prompts(1).read < policy.prompts(1).pairs);
}

TEST_CASE("a prompt policy goes with a policy of the steps") {
  model_owner const model = tiny_llama();
  session policy(presets::snapkv{.tokens = 64, .after = 0}, {.prompt_policy = small()});
  decoder ours(model.get(), &policy);
  ours.feed(random_tokens(900));
  ours.feed(3);
  CHECK(policy.last_step().tokens_read < 100);
  CHECK(policy.prompts().read < policy.prompts().pairs);
}

TEST_CASE("a prompt policy that can't be is refused at attach") {
  model_owner const model = tiny_llama();
  prompt_pages beyond = small();
  beyond.from = 4096;
  session policy(presets::full{}, {.prompt_policy = beyond});
  llama_context_params params = parameters({});
  CHECK_THROWS_WITH(policy.attach(params, model.get()),
                    Catch::Matchers::ContainsSubstring("from is 4096; it must be below the context of 1024"));
  CHECK(params.cb_eval == nullptr);
  CHECK_THROWS_AS(session(presets::full{}, {.prompts = false, .prompt_policy = small()}), invalid_value);
}

}  // namespace
}  // namespace kvpolicy::llama::testing
