// The prompt's last queries reach the policy however the prompt is cut into batches and micro-batches.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "decoding.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

constexpr presets::snapkv preset{.tokens = 64, .window = 16, .smooth = {.width = 5}, .after = 0};

std::vector<made_choice> choices_of(llama_model* model, context_options const& options,
                                    std::vector<std::int64_t> const& batches) {
  std::vector<made_choice> choices;
  session policy(preset, recording(choices));
  decoder ours(model, &policy, options);
  std::int64_t total = 0;
  for (std::int64_t const size : batches) total += size;
  token_list const prompt = random_tokens(total);
  auto next = prompt.begin();
  for (std::int64_t const size : batches) {
    ours.feed(token_list(next, next + size));
    next += size;
  }
  decode_each(ours, random_tokens(3, 4));
  return choices;
}

TEST_CASE("snapkv chooses the same from one micro-batch and from many") {
  model_owner const model = tiny_llama();
  std::uint32_t const micro_batch = GENERATE(8u, 12u, 24u, 200u);
  std::int64_t const prompt = GENERATE(210, 204, 248);
  std::vector<made_choice> const whole = choices_of(model.get(), {}, {prompt});
  CAPTURE(micro_batch, prompt);
  REQUIRE(whole.size() == 6);
  CHECK(identical(choices_of(model.get(), {.micro_batch = micro_batch}, {prompt}), whole));
}

TEST_CASE("snapkv chooses the same from a prompt in several batches") {
  model_owner const model = tiny_llama();
  std::vector<std::int64_t> const batches = GENERATE(std::vector<std::int64_t>{100, 110}, std::vector<std::int64_t>{200, 10},
                                                     std::vector<std::int64_t>{196, 4, 10}, std::vector<std::int64_t>{3, 207});
  CHECK(choices_of(model.get(), {}, batches) == choices_of(model.get(), {}, {210}));
}

TEST_CASE("snapkv chooses the same where the prompt's last micro-batch is a single token, but for that token's query") {
  // Such a micro-batch can't be told from a decode step: it is one, and the window ends before it.
  model_owner const model = tiny_llama();
  std::vector<made_choice> const split = choices_of(model.get(), {.micro_batch = 24}, {241});
  REQUIRE(split.size() == 8);
  CHECK(split.front().tokens == 241);
  std::vector<made_choice> const shorter = choices_of(model.get(), {.micro_batch = 24}, {240});
  CHECK(split.front().lists == shorter.front().lists);
}

TEST_CASE("a prompt shorter than the window and the budget is kept whole") {
  model_owner const model = tiny_llama();
  std::int64_t const prompt = GENERATE(2, 10, 16, 17, 63);
  std::vector<made_choice> const choices = choices_of(model.get(), {}, {prompt});
  REQUIRE(choices.size() == 6);
  for (made_choice const& made : choices) {
    for (range_list const& list : made.lists) CHECK(token_count(list) == made.tokens);
  }
}

}  // namespace
}  // namespace kvpolicy::llama::testing
