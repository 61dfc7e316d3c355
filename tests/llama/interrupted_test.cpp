// Decodes that are stopped half-way, by the caller's abort callback at its Nth call or by an exception, and tried again.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <stdexcept>

#include "decoding.hpp"
#include "kvpolicy/presets/chess.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

/// An abort callback that stops at its Nth call, once.
struct countdown {
  std::int64_t left = -1;
  static bool at(void* data) noexcept {
    auto& self = *static_cast<countdown*>(data);
    return self.left >= 0 && self.left-- == 0;
  }
};

struct outcome {
  std::vector<logits> steps;
  std::vector<made_choice> choices;
  bool stopped = false;
  bool operator==(outcome const& other) const { return steps == other.steps && choices == other.choices; }
};

/// A prompt in micro-batches of 40, 40 and 20, then three steps; llama_decode of the third micro-batch (or of the second
/// step) is stopped at call `stop` and repeated.
template <class Policy>
outcome run(llama_model* model, Policy const& preset, std::int64_t stop, bool in_prompt) {
  outcome result;
  session policy(preset, recording(result.choices));
  llama_context_params params = parameters({.micro_batch = 40});
  countdown abort;
  params.abort_callback = &countdown::at;
  params.abort_callback_data = &abort;
  policy.attach(params, model);
  decoder ours(model, params);
  token_list const prompt = random_tokens(100);
  auto const interrupted = [&](token_list const& tokens, bool here) {
    if (here) abort.left = stop;
    int const status = ours.status_of(tokens);
    abort.left = -1;
    if (status == 0) return;
    REQUIRE(status == 2);
    REQUIRE_NOTHROW(policy.check());
    result.stopped = true;
    std::size_t const half_done = result.choices.empty() ? 0 : static_cast<std::size_t>(result.choices.back().layer == 0);
    if (!in_prompt) result.choices.resize(result.choices.size() - (half_done != 0 ? 1 : 0));
    REQUIRE(ours.status_of(tokens) == 0);
  };
  ours.feed(token_list(prompt.begin(), prompt.begin() + 80));
  interrupted(token_list(prompt.begin() + 80, prompt.end()), in_prompt);
  int step = 0;
  for (llama_token const token : random_tokens(3, 4)) {
    std::size_t const before = result.choices.size();
    interrupted({token}, !in_prompt && ++step == 2);
    if (result.choices.size() > before + 2)
      result.choices.erase(result.choices.begin() + std::ptrdiff_t(before), result.choices.end() - 2);
    float const* const last = llama_get_logits_ith(ours.context(), -1);
    result.steps.emplace_back(last, last + tiny_vocabulary);
  }
  return result;
}

template <class Policy>
void check_interrupted(Policy const& preset) {
  model_owner const model = tiny_llama();
  for (bool const in_prompt : {true, false}) {
    outcome const whole = run(model.get(), preset, -1, in_prompt);
    REQUIRE(whole.choices.size() == 6);
    std::int64_t stops = 0;
    for (std::int64_t stop = 0;; ++stop) {
      outcome const repeated = run(model.get(), preset, stop, in_prompt);
      if (!repeated.stopped) break;
      ++stops;
      CAPTURE(in_prompt, stop);
      REQUIRE(identical(repeated, whole));
    }
    CHECK(stops > 20);  // one for each node
  }
}

TEST_CASE("a decode that the caller stopped at any node is repeated as if nothing had been") {
  SECTION("quest") { check_interrupted(presets::quest{.tokens = 48, .page = 8}); }
  SECTION("snapkv") { check_interrupted(presets::snapkv{.tokens = 40, .window = 32, .smooth = {.width = 5}, .after = 0}); }
  SECTION("streaming_llm") { check_interrupted(presets::streaming_llm{.tokens = 48}); }
  SECTION("chess") {
    check_interrupted(presets::chess{.fractions = {.grids = .5f, .chunks = .2f, .pages = .1f},
                                     .units = {.page = 8, .pages_per_chunk = 4, .chunks_per_grid = 2},
                                     .recent_pages = 2});
  }
}

TEST_CASE("an exception of on_choice stops the decode and comes out of check") {
  model_owner const model = tiny_llama();
  bool angry = false;
  session policy(presets::quest{.tokens = 64}, {.on_choice = [&](llama_seq_id, layer_id layer, std::int64_t, selection const&) {
                   if (angry && layer.value == 1) throw std::domain_error("enough");
                 }});
  decoder ours(model.get(), &policy, {.threads = 2});
  session untroubled(presets::quest{.tokens = 64});
  decoder other(model.get(), &untroubled, {.threads = 2});
  ours.feed(random_tokens(200));
  other.feed(random_tokens(200));
  CHECK(identical(decode_each(ours, random_tokens(3, 4)), decode_each(other, random_tokens(3, 4))));
  angry = true;
  CHECK(ours.status_of({1}) == 2);
  CHECK_THROWS_AS(policy.check(), std::domain_error);
  CHECK(llama_memory_seq_pos_max(ours.memory(), 0) == 202);
  angry = false;
  CHECK(identical(decode_each(ours, random_tokens(3, 5)), decode_each(other, random_tokens(3, 5))));
}

}  // namespace
}  // namespace kvpolicy::llama::testing
