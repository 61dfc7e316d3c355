// A choice for the whole request reads exactly what the engine reads after the other cells were removed.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <limits>

#include "decoding.hpp"
#include "kvpolicy/presets/chess.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

// Argued in full_test.cpp; measured at most .0068.
constexpr double tolerance = .02;
constexpr std::int64_t prompt_tokens = 300;
constexpr std::int64_t steps = 24;

struct policy_run {
  std::vector<logits> steps;
  std::vector<made_choice> choices;  ///< one for each step: those of layer 0
};

template <class Policy>
policy_run run(llama_model* model, Policy const& preset, context_options const& options) {
  policy_run result;
  std::vector<made_choice> all;
  session policy(preset, recording(all));
  decoder ours(model, &policy, options);
  ours.feed(random_tokens(prompt_tokens));
  result.steps = decode_each(ours, random_tokens(steps, 3));
  for (made_choice const& made : all) {
    REQUIRE(made.lists.size() == 1);
    if (made.layer == 0) result.choices.push_back(made);
    else CHECK(made == made_choice{made.layer, result.choices.back().tokens, result.choices.back().lists});
  }
  REQUIRE(std::ssize(result.choices) == steps);
  return result;
}

/// Removes from sequence 0 what the choice does not list, up to the token that is about to be decoded.
void remove_unread(decoder& engine, made_choice const& made) {
  std::int32_t from = 0;
  for (token_range const& range : made.lists[0]) {
    if (range.begin > from) REQUIRE(llama_memory_seq_rm(engine.memory(), 0, from, range.begin));
    from = range.end;
  }
  REQUIRE(from == made.tokens);
}

std::vector<logits> replay_by_removal(llama_model* model, policy_run const& from, context_options const& options) {
  decoder engine(model, nullptr, options);
  engine.feed(random_tokens(prompt_tokens));
  std::vector<logits> all;
  token_list const rest = random_tokens(steps, 3);
  for (std::size_t step = 0; step < rest.size(); ++step) {
    remove_unread(engine, from.choices[step]);
    all.push_back(engine.feed(rest[step]));
  }
  return all;
}

/// For choices whose tokens come back: all of them are kept as sequence 1, and sequence 0 is formed from it at each step.
std::vector<logits> replay_from_archive(llama_model* model, policy_run const& from, context_options options) {
  options.sequences = 2;
  options.unified = true;
  decoder engine(model, nullptr, options);
  engine.feed(random_tokens(prompt_tokens));
  llama_memory_seq_cp(engine.memory(), 0, 1, -1, -1);
  std::vector<logits> all;
  token_list const rest = random_tokens(steps, 3);
  for (std::size_t step = 0; step < rest.size(); ++step) {
    auto const now = static_cast<llama_pos>(prompt_tokens + std::int64_t(step));
    REQUIRE(llama_memory_seq_rm(engine.memory(), 0, -1, -1));
    for (token_range const& range : from.choices[step].lists[0]) {
      llama_memory_seq_cp(engine.memory(), 1, 0, range.begin, std::min(range.end, now));
    }
    all.push_back(engine.feed(rest[step]));
    llama_memory_seq_cp(engine.memory(), 0, 1, now, now + 1);
  }
  return all;
}

constexpr presets::chess small_chess{.fractions = {.grids = .5f, .chunks = .5f, .pages = .4f},
                                     .units = {.page = 8, .pages_per_chunk = 4, .chunks_per_grid = 2},
                                     .sink_pages = 1,
                                     .recent_pages = 2,
                                     .depth = 3};

TEST_CASE("streaming_llm equals the engine with the cells removed that it does not read") {
  model_owner const model = tiny_llama();
  ggml_type const type = GENERATE(GGML_TYPE_F16, GGML_TYPE_BF16);
  int const threads = GENERATE(1, 2);
  context_options const options{.threads = threads, .type = type};
  policy_run const ours = run(model.get(), presets::streaming_llm{.tokens = 64, .sinks = 4}, options);
  for (made_choice const& made : ours.choices) {
    CHECK(token_count(made.lists[0]) == 64);
    CHECK(made.lists[0].front() == token_range{0, 4, reason::sink});
  }
  double const apart = difference(ours.steps, replay_by_removal(model.get(), ours, options));
  CAPTURE(ggml_type_name(type), threads, apart);
  CHECK(apart < tolerance);
  decoder engine(model.get(), nullptr, options);
  engine.feed(random_tokens(prompt_tokens));
  CHECK(difference(ours.steps, decode_each(engine, random_tokens(steps, 3))) > 20 * tolerance);  // it does make a difference
}

TEST_CASE("chess with a standing choice equals the engine with the cells removed that it does not read") {
  model_owner const model = tiny_llama({.layers = 3});
  presets::chess preset = small_chess;
  preset.entropy = preset.varentropy = std::numeric_limits<float>::infinity();
  policy_run const ours = run(model.get(), preset, {});
  CHECK(token_count(ours.choices.front().lists[0]) < 150);
  double const apart = difference(ours.steps, replay_by_removal(model.get(), ours, {}));
  CAPTURE(apart);
  CHECK(apart < tolerance);
}

TEST_CASE("chess that chooses anew equals the engine whose sequence is formed anew") {
  model_owner const model = tiny_llama({.layers = 3});
  presets::chess preset = small_chess;
  preset.entropy = -1;  // fires after each page
  preset.rest = 0;
  policy_run const ours = run(model.get(), preset, {});
  int changes = 0;
  for (std::size_t step = 1; step < ours.choices.size(); ++step) {
    for (token_range const& now : ours.choices[step].lists[0]) {
      bool seen = false;
      for (token_range const& before : ours.choices[step - 1].lists[0])
        seen |= before.begin <= now.begin && now.begin < before.end;
      changes += now.why == reason::scored && !seen ? 1 : 0;
    }
  }
  CHECK(changes > 0);
  double const apart = difference(ours.steps, replay_from_archive(model.get(), ours, {}));
  CAPTURE(apart, changes);
  CHECK(apart < tolerance);
}

}  // namespace
}  // namespace kvpolicy::llama::testing
