// Caches of blocks: elements as ggml reads them, and full as the engine computes it.
#include <ggml.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstring>
#include <random>
#include <utility>

#include "decoding.hpp"
#include "kvpolicy/detail/element.hpp"
#include "kvpolicy/presets/expected_attention.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/tiers/host.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

constexpr std::pair<ggml_type, element_type> types[] = {
    {GGML_TYPE_Q8_0, element_type::q8_0}, {GGML_TYPE_Q4_0, element_type::q4_0}, {GGML_TYPE_Q4_1, element_type::q4_1},
    {GGML_TYPE_Q5_0, element_type::q5_0}, {GGML_TYPE_Q5_1, element_type::q5_1}, {GGML_TYPE_IQ4_NL, element_type::iq4_nl}};

TEST_CASE("an element of a block is what ggml makes of it") {
  auto const [theirs, ours] = GENERATE(from_range(std::begin(types), std::end(types)));
  REQUIRE(static_cast<std::size_t>(size_of(ours)) == ggml_type_size(theirs));
  REQUIRE(elements_of_block(ours) == ggml_blck_size(theirs));
  std::mt19937 random(1);
  bool equal = true;
  for (int round = 0; round < 2000; ++round) {
    std::array<std::byte, 64> block{};
    for (std::byte& b : block) b = static_cast<std::byte>(random());
    for (std::size_t half = 0; half < 4; half += 2) {  // scales that are finite
      if ((block[half + 1] & std::byte{0x7c}) == std::byte{0x7c}) block[half + 1] = std::byte{0x2c};
    }
    std::array<float, 32> wanted{};
    ggml_get_type_traits(theirs)->to_float(block.data(), wanted.data(), 32);
    for (std::int64_t i = 0; i < 32; ++i) {
      equal = equal && block_element(ours, block.data(), i) == wanted[static_cast<std::size_t>(i)];
    }
  }
  CAPTURE(ggml_type_name(theirs));
  CHECK(equal);
}

// At a step the engine rounds the query to 8 bits, ours stays fp32; keys that come out different by that are rounded to few
// bits again, so that what is apart grows with the type's own error: that of the engine's logits over f16.
TEST_CASE("full is nearer to the engine's logits over caches of blocks than these are to those over f16") {
  ggml_type const keys =
      GENERATE(GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL, GGML_TYPE_F16);
  ggml_type const values = GENERATE(GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_F16);
  std::int64_t const head_dim = GENERATE(32, 64);  // the engine turns keys of 64 once more
  model_owner const model = tiny_llama({.head_dim = head_dim});
  context_options const options{.micro_batch = 128, .threads = 2, .type = keys, .value_type = values};
  token_list const prompt = random_tokens(300);
  token_list const rest = random_tokens(12, 3);
  decoder engine(model.get(), nullptr, options);
  decoder over_f16(model.get(), nullptr);
  session policy(presets::full{});
  decoder ours(model.get(), &policy, options);
  double const prompts_apart = difference(ours.feed(prompt), engine.feed(prompt));
  over_f16.feed(prompt);
  std::vector<logits> const theirs = decode_each(engine, rest);
  double const steps_apart = difference(decode_each(ours, rest), theirs);
  double const types_apart = difference(decode_each(over_f16, rest), theirs);
  CAPTURE(ggml_type_name(keys), ggml_type_name(values), head_dim, prompts_apart, steps_apart, types_apart);
  CHECK(prompts_apart < .05);
  CHECK(steps_apart < std::max(.06, types_apart / 2));
  CHECK(policy.steps() == 12);
}

// Heads of 32 are not rotated: the engine itself dies there of a matrix that it did not make.
TEST_CASE("keys in blocks that llama_memory_seq_add turns are followed") {
  model_owner const model = tiny_llama({.head_dim = 64});
  context_options const options{.type = GGML_TYPE_Q8_0, .value_type = GGML_TYPE_Q8_0};
  decoder engine(model.get(), nullptr, options);
  session policy(presets::full{});
  decoder ours(model.get(), &policy, options);
  for (decoder* const d : {&ours, &engine}) {
    d->feed(random_tokens(200));
    REQUIRE(llama_memory_seq_rm(d->memory(), 0, 0, 20));
    llama_memory_seq_add(d->memory(), 0, 20, -1, -20);
  }
  double const apart = difference(decode_each(ours, random_tokens(5)), decode_each(engine, random_tokens(5)));
  CAPTURE(apart);
  CHECK(apart < .06);
  CHECK(policy.steps() == 5);
  CHECK(policy.last_step().tokens == 185);
}

// A matrix turns keys of 64 once more, and what a policy rotated back would not be what was turned.
TEST_CASE("a policy that turns queries back has keys in blocks where the engine leaves them as they are") {
  auto const status = [](std::int64_t head_dim) {
    model_owner const model = tiny_llama({.head_dim = head_dim});
    session policy(presets::expected_attention{.tokens = 64});
    decoder ours(model.get(), &policy, {.type = GGML_TYPE_Q8_0});
    int const made = ours.status_of(random_tokens(200));
    if (made != 0) CHECK_THROWS_WITH(policy.check(), Catch::Matchers::ContainsSubstring("LLAMA_ATTN_ROT_DISABLE=1"));
    return made;
  };
  CHECK(status(32) == 0);
  CHECK(status(64) == 2);
}

TEST_CASE("rows in blocks live in a tier as they are") {
  tiny_shape const shape{};
  model_owner const model = tiny_llama(shape);
  context_options const options{.type = GGML_TYPE_Q5_1, .value_type = GGML_TYPE_Q5_1};
  auto const steps_of = [&](tiers::any_tier* rows) {
    session_options how;
    if (rows != nullptr) how.cache = {.tier = rows, .resident = {.slots = 80}};
    session policy(presets::quest{.tokens = 64}, how);
    decoder ours(model.get(), &policy, options);
    ours.feed(random_tokens(300));
    std::vector<logits> made = decode_each(ours, random_tokens(6, 3));
    CHECK((rows == nullptr || policy.tier_statistics().bytes_fetched > 0));
    return made;
  };
  tiers::any_tier rows = tiers::any_tier::of<tiers::host>(2 * bytes_of(element_type::q5_1, shape.head_dim), 2 * 2 * 1024);
  CHECK(identical(steps_of(&rows), steps_of(nullptr)));
}

TEST_CASE("policies choose over a cache of blocks as over one of f16") {
  ggml_type const type = GENERATE(GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q5_1);
  model_owner const model = tiny_llama();
  auto const chosen = [&](auto const& preset, ggml_type of) {
    std::vector<made_choice> choices;
    session policy(preset, recording(choices));
    decoder ours(model.get(), &policy, {.type = of});
    ours.feed(random_tokens(300));
    decode_each(ours, random_tokens(4, 3));
    return choices;
  };
  auto const alike = [&](auto const& preset) {
    auto const here = chosen(preset, type);
    auto const there = chosen(preset, GGML_TYPE_F16);
    REQUIRE(here.size() == there.size());
    std::int64_t shared = 0;
    std::int64_t all = 0;
    for (std::size_t i = 0; i < here.size(); ++i) {
      for (std::size_t l = 0; l < here[i].lists.size(); ++l) {
        std::vector<bool> in(400);
        for (token_range const& r : there[i].lists[l]) {
          for (std::int32_t t = r.begin; t < r.end; ++t) in[static_cast<std::size_t>(t)] = true;
        }
        for (token_range const& r : here[i].lists[l]) {
          for (std::int32_t t = r.begin; t < r.end; ++t, ++all) shared += in[static_cast<std::size_t>(t)] ? 1 : 0;
        }
      }
    }
    CAPTURE(ggml_type_name(type), shared, all);
    CHECK(shared * 10 > all * (type == GGML_TYPE_Q8_0 ? 9 : 7));
  };
  alike(presets::snapkv{.tokens = 64, .after = 0});
  alike(presets::quest{.tokens = 64});
}

}  // namespace
}  // namespace kvpolicy::llama::testing
