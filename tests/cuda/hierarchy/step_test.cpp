#include "kvpolicy/gpu/hierarchy/step.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

#include <catch2/catch_test_macros.hpp>

#include "cuda/batch_run.hpp"
#include "cuda/written_batch.hpp"
#include "kvpolicy/compose.hpp"
#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

/// Any of its settings; standardised scores are rounded.
presets::chess some_chess(random_source& random, bool standardised) {
  presets::chess made = standardised       ? presets::chess{}
                        : random.one_in(2) ? presets::chess::aggressive()
                                           : presets::chess::moderate();
  made.units = {.page = static_cast<std::int32_t>(random.between(2, 8)),
                .pages_per_chunk = static_cast<std::int32_t>(random.between(1, 4)),
                .chunks_per_grid = static_cast<std::int32_t>(random.between(1, 3))};
  made.recent_pages = static_cast<std::int32_t>(random.between(1, 3));
  made.depth = static_cast<std::int32_t>(random.between(1, 3));
  made.fractions.tokens = random.one_in(2) ? 0 : static_cast<std::int32_t>(random.between(4 * made.units.page, 60));
  made.every = static_cast<std::int32_t>(random.between(0, 3));
  made.after = random.one_in(3) ? static_cast<std::int32_t>(random.between(1, 6)) : 0;
  made.entropy = 1.5f;
  made.varentropy = .2f;
  return made;
}

TEST_CASE("a decoder's steps choose what the four verbs choose: chess", "[cuda]") {
  for (bool const standardised : {false, true}) {
    run_batches<presets::chess>(
        5, 20, [&](random_source& random, cache_shape const&) { return some_chess(random, standardised); }, false);
  }
}

/// CHESS's pages with another part in place of one of its own.
template <class Change>
void run_changed_chess(std::uint64_t seed, Change change) {
  auto const made = [&](random_source& random) {
    auto const of = some_chess(random, false).parts().retrieve;
    return policy{keep_all{}, change(random, of)};
  };
  random_source any(seed);
  run_batches<decltype(made(any))>(
      seed, 12, [&](random_source& random, cache_shape const&) { return made(random); }, false);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: chess with a part of another kind", "[cuda]") {
  auto const with = [](auto const& of, auto const& budget, auto const& trigger) {
    return keep{of.segment, of.pool, of.score, budget, of.select, of.window, trigger};
  };
  SECTION("a number of tokens") {
    run_changed_chess(31, [&](random_source& random, auto const& of) {
      return with(of, budgets::tokens{.count = narrow(random.between(4 * of.segment.page, 70))}, of.trigger);
    });
  }
  SECTION("renewed every so many steps") {
    run_changed_chess(32, [&](random_source& random, auto const& of) {
      return with(of, of.budget, triggers::every{narrow(random.between(1, 4))});
    });
  }
  SECTION("renewed by entropy alone") {
    run_changed_chess(33, [&](random_source&, auto const& of) { return with(of, of.budget, of.trigger.second); });
  }
  SECTION("chosen once, behind the prompt") {
    run_changed_chess(34, [&](random_source&, auto const& of) { return with(of, of.budget, triggers::prefill{}); });
  }
}

TEST_CASE("a decoder whose policy reads logits asks for observe() after a unit of steps", "[cuda]") {
  written_batch batch(1);
  auto& [shape, cache, device, exec] = batch;
  std::vector<float> const frequencies{1, .3f, .1f, .03f};
  shared_vector<float> const written(2 * 8, .5f);
  gpu::vector_rows logits{};
  logits.base = on_device(written).data;
  logits.elements = std::ssize(written);
  logits.sequence_stride = 8;
  device.send();
  auto const steps = [&](bool observe_once) {
    presets::chess const policy{.fractions = {.tokens = 30}, .units = {.page = 4}};
    gpu::decoder<presets::chess, test_device> decoder(policy, shape, 2, device);
    prompt_signals prompt{};
    prompt.rope = {frequencies.data(), 4};
    decoder.prefill(0, cache.view(), 1, {0}, prompt, exec);
    std::int32_t tokens = 1;
    while (tokens < 40) {
      decoder.plan(std::vector<std::int32_t>{++tokens, 0});
      // As in a captured step, which calls it once on the host.
      if (observe_once && tokens == 2) decoder.observe(logits, 8);
    }
    return tokens;
  };
  CHECK(steps(true) == 40);
  CHECK_THROWS_AS(steps(false), invalid_value);
}

}  // namespace
}  // namespace kvpolicy_test
