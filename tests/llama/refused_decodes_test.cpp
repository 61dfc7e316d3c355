// What can only be refused by llama_decode: it returns 2, check() says why, and the engine goes on.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "decoding.hpp"
#include "kvpolicy/presets/expected_attention.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/sentencekv.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr presets::quest small_quest{.tokens = 64, .page = 8};

/// check() throws once, naming the reason; then the session and, detached, the engine serve the next request as ever.
void check_refused_and_intact(llama_model* model, session& policy, decoder& ours, context_options const& options, int status,
                              char const* message) {
  CHECK(status == 2);
  CHECK_THROWS_WITH(policy.check(), ContainsSubstring(message));
  CHECK_NOTHROW(policy.check());

  ours.clear();
  policy.use(small_quest);
  session fresh(small_quest);
  decoder other(model, &fresh, options);
  CHECK(identical(ours.feed(random_tokens(250)), other.feed(random_tokens(250))));
  CHECK(identical(decode_each(ours, random_tokens(10, 3)), decode_each(other, random_tokens(10, 3))));

  policy.detach();
  ours.clear();
  decoder engine(model, nullptr, options);
  CHECK(identical(ours.feed(random_tokens(250)), engine.feed(random_tokens(250))));
  CHECK(identical(decode_each(ours, random_tokens(10, 3)), decode_each(engine, random_tokens(10, 3))));
}

TEST_CASE(
    "sequences of a unified cache that are not named by set_batch are refused where they meet, and the engine stays intact") {
  model_owner const model = tiny_llama();
  context_options const options{.sequences = 2, .unified = true};
  session policy(small_quest);
  decoder ours(model.get(), &policy, options);
  SECTION("in one batch, from the start") {
    int const status = ours.status_of(random_tokens(4), {0, 0, 1, 1});
    check_refused_and_intact(model.get(), policy, ours, options, status, "need set_batch()");
  }
  SECTION("in one batch of one token each, after a prompt") {
    ours.feed(random_tokens(100));
    int const status = ours.status_of(random_tokens(2), {0, 1});
    check_refused_and_intact(model.get(), policy, ours, options, status, "need set_batch()");
  }
  SECTION("with other tokens than set_batch named") {
    token_list other = random_tokens(4);
    policy.set_batch(llama_batch_get_one(other.data(), 4));
    int const status = ours.status_of(random_tokens(4, 3), {0, 0, 1, 1});
    check_refused_and_intact(model.get(), policy, ours, options, status, "it wants each batch before its decode");
  }
  SECTION("with more tokens than set_batch named") {
    token_list few = random_tokens(2);
    policy.set_batch(llama_batch_get_one(few.data(), 2));
    int const status = ours.status_of(random_tokens(4), {0, 0, 1, 1});
    check_refused_and_intact(model.get(), policy, ours, options, status, "more tokens than the 2 of set_batch()");
  }
}

TEST_CASE("interleaved sequences that the engine alone decoded are followed when the policy takes over") {
  model_owner const model = tiny_llama();
  context_options const options{.sequences = 2, .unified = true};
  session policy(small_quest);
  decoder ours(model.get(), &policy, options);
  policy.detach();
  REQUIRE(ours.status_of(random_tokens(6), {0, 1, 0, 1, 0, 1}) == 0);
  policy.use(presets::full{});
  decoder engine(model.get(), nullptr, options);
  REQUIRE(engine.status_of(random_tokens(6), {0, 1, 0, 1, 0, 1}) == 0);
  CHECK(difference(ours.feed(1), engine.feed(1)) < .01);
}

TEST_CASE("a hole in the middle is refused, and the engine stays intact") {
  model_owner const model = tiny_llama();
  session policy(small_quest);
  decoder ours(model.get(), &policy);
  ours.feed(random_tokens(200));
  decode_each(ours, random_tokens(4, 3));
  SECTION("before a token") {
    REQUIRE(llama_memory_seq_rm(ours.memory(), 0, 50, 60));
    check_refused_and_intact(model.get(), policy, ours, {}, ours.status_of({1}), "llama_memory_seq_rm from the middle");
  }
  SECTION("of one cell, before a token") {
    REQUIRE(llama_memory_seq_rm(ours.memory(), 0, 50, 51));
    check_refused_and_intact(model.get(), policy, ours, {}, ours.status_of({1}), "llama_memory_seq_rm from the middle");
  }
  SECTION("before a batch that fits into it") {
    REQUIRE(llama_memory_seq_rm(ours.memory(), 0, 50, 60));
    check_refused_and_intact(model.get(), policy, ours, {}, ours.status_of(random_tokens(5)), "holes");
  }
  SECTION("before a batch that does not fit into it") {
    REQUIRE(llama_memory_seq_rm(ours.memory(), 0, 50, 60));
    check_refused_and_intact(model.get(), policy, ours, {}, ours.status_of(random_tokens(20)), "holes");
  }
}

TEST_CASE("a sequence without its beginning goes on, but for policies that turn keys by their positions") {
  model_owner const model = tiny_llama();
  session policy(presets::full{});
  decoder ours(model.get(), &policy);
  decoder engine(model.get(), nullptr);
  for (decoder* const d : {&ours, &engine}) {
    d->feed(random_tokens(200));
    REQUIRE(llama_memory_seq_rm(d->memory(), 0, 0, 10));
  }
  CHECK(difference(decode_each(ours, random_tokens(4, 3)), decode_each(engine, random_tokens(4, 3))) < .01);
  policy.use(presets::expected_attention{.tokens = 64});
  CHECK(ours.status_of({1}) == 2);
  CHECK_THROWS_WITH(policy.check(), ContainsSubstring("first token is at position 10"));
}

TEST_CASE("a prompt given as embeddings is refused for a policy that reads token ids") {
  model_owner const model = tiny_llama();
  session policy(presets::sentencekv{.tokens = 64, .sentences = {.boundary = ends_by_length(), .longest = 20}, .after = 0});
  decoder ours(model.get(), &policy);
  ours.feed(random_tokens(50));
  ours.clear();
  int const width = llama_model_n_embd(model.get());
  llama_batch batch = llama_batch_init(100, width, 1);
  for (std::int32_t i = 0; i < 100; ++i) {
    for (int c = 0; c < width; ++c) batch.embd[i * width + c] = static_cast<float>((i * 31 + c * 7) % 17) / 17 - .5f;
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = i == 99;
  }
  batch.n_tokens = 100;
  CHECK(llama_decode(ours.context(), batch) == 0);
  llama_batch_free(batch);
  check_refused_and_intact(model.get(), policy, ours, {}, ours.status_of({1}), "token ids");
}

/// A session whose policy saw no prompt and refused the token behind it, and the engine alone at the same place.
struct refused_token {
  model_owner const model = tiny_llama();
  session policy{presets::full{}, {.prompts = false}};
  decoder ours{model.get(), &policy};
  decoder engine{model.get(), nullptr};

  refused_token() {
    ours.feed(random_tokens(100));
    engine.feed(random_tokens(100));
    policy.use(presets::snapkv{.tokens = 64, .after = 0});
    CHECK(ours.status_of({1}) == 2);
  }
};

TEST_CASE("a refused decode leaves the cache as it was before") {
  refused_token at;
  CHECK_THROWS_AS(at.policy.check(), unsupported);
  CHECK(llama_memory_seq_pos_max(at.ours.memory(), 0) == 99);
  at.policy.detach();
  CHECK(identical(decode_each(at.ours, random_tokens(10, 3)), decode_each(at.engine, random_tokens(10, 3))));
}

TEST_CASE("an unread refusal does not stop the engine after detach") {
  refused_token at;
  at.policy.detach();  // check() was not called
  REQUIRE(at.ours.status_of({1}) == 0);
  at.engine.feed(1);
  CHECK(identical(at.ours.state(), at.engine.state()));
}

TEST_CASE("while a refusal is unread, llama_decode keeps returning 2 and changes nothing") {
  model_owner const model = tiny_llama();
  session policy(presets::full{});
  decoder ours(model.get(), &policy);
  ours.feed(random_tokens(100));
  policy.use(presets::snapkv{.tokens = 64, .after = 0});
  CHECK(ours.status_of({1}) == 2);
  CHECK(ours.status_of({1}) == 2);
  CHECK(ours.status_of({1, 2, 3}) == 2);
  CHECK(llama_memory_seq_pos_max(ours.memory(), 0) == 99);
  CHECK_THROWS_AS(policy.check(), unsupported);
  policy.use(presets::full{});
  CHECK(ours.status_of({1}) == 0);
}

}  // namespace
}  // namespace kvpolicy::llama::testing
