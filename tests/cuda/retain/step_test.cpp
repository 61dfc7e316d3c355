#include "kvpolicy/gpu/retain/retained.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "cuda/batch_run.hpp"
#include "cuda/written_batch.hpp"
#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

TEST_CASE("a decoder's steps choose what the four verbs choose: streaming_llm", "[cuda]") {
  run_batches<presets::streaming_llm>(2, 10, [](random_source& random, cache_shape const&) {
    presets::streaming_llm made{.tokens = static_cast<std::int32_t>(random.between(8, 60)),
                                .sinks = static_cast<std::int32_t>(random.between(0, 5)),
                                .keep_prompt = random.one_in(4)};
    if (random.one_in(3)) made.ratio = .4;
    return made;
  });
}

TEST_CASE("a decoder's steps choose what the four verbs choose: duoattention", "[cuda]") {
  std::vector<float> retrieval;
  run_batches<presets::duoattention>(11, 60, [&](random_source& random, cache_shape const& shape) {
    retrieval = random.reals(shape.layers * shape.kv_heads);
    for (float& head : retrieval) head = random.one_in(3) ? .5f : head;  // heads of one score
    presets::duoattention made{.retrieval = {retrieval, shape.kv_heads},
                               .tokens = random.one_in(2) ? static_cast<std::int32_t>(random.between(30, 70)) : 0,
                               .streaming = std::abs(random.real()),
                               .sinks = static_cast<std::int32_t>(random.between(0, 4)),
                               .recent = static_cast<std::int32_t>(random.between(1, 20))};
    if (random.one_in(4)) made.ratio = .5;
    made.streaming = std::min(made.streaming, 1.0);
    return made;
  });
}

TEST_CASE("a decoder's steps choose what the four verbs choose: rkv", "[cuda]") {
  run_batches<presets::rkv>(
      13, 60,
      [](random_source& random, cache_shape const& shape) {
        presets::rkv made{.tokens = narrow(random.between(20, 50)),
                          .keep_prompt = random.one_in(3),
                          .every = narrow(random.between(1, 5)),
                          .window = narrow(random.between(1, 6))};
        made.layers = {.dense_first = narrow(random.between(0, shape.layers - 1)), .reuse = narrow(random.between(1, 2))};
        return made;
      },
      false);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: triattention", "[cuda]") {
  std::vector<query_moment> moments;
  run_batches<presets::triattention>(
      14, 40,
      [&](random_source& random, cache_shape const& shape) {
        moments.clear();
        for (std::int64_t i = 0; i < shape.layers * shape.q_heads * (shape.head_dim / 2); ++i)
          moments.push_back({.real = random.real(), .imaginary = random.real(), .length = 2});
        return presets::triattention{.moments = {moments, shape.q_heads},
                                     .tokens = narrow(random.between(20, 50)),
                                     .keep_prompt = random.one_in(3),
                                     .every = narrow(random.between(1, 5)),
                                     .recent = narrow(random.between(0, 8)),
                                     .farthest = 64};
      },
      false);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: kvzip", "[cuda]") {
  random_source random(12);
  for (int round = 0; round < rounds_of(40); ++round) {
    cache_shape const shape = batch_shape(random, 120);
    presets::kvzip const policy{.tokens = narrow(random.between(10, 50)),
                                .sinks = narrow(random.between(0, 4)),
                                .recent = narrow(random.between(0, 3))};
    batch_run<presets::kvzip> run(policy, shape, 2, false, random);
    CHECK(run.step() == "");
    run.begin(0, random.between(1, 60));
    run.begin(1, random.between(1, 60));
    for (int step = 0; step < 9; ++step) {
      if (step == 1 || step == 6) run.repeat(0);  // the second time with what was answered
      if (step == 4) run.extend(0, random.between(1, 9));
      if (step == 5) run.begin(1, random.between(1, 60));
      std::string const fault = run.step();
      INFO("round " << round << " step " << step << ": " << fault);
      REQUIRE(fault.empty());
    }
  }
}

TEST_CASE("a decoder's steps choose what the four verbs choose: snapkv", "[cuda]") {
  run_batches<presets::snapkv>(3, 10, [](random_source& random, cache_shape const& shape) {
    presets::snapkv made{.tokens = static_cast<std::int32_t>(random.between(20, 60)),
                         .window = static_cast<std::int32_t>(random.between(1, 9)),
                         .after = random.one_in(2) ? static_cast<std::int32_t>(random.between(1, 6)) : 0};
    made.layers.dense_first = static_cast<std::int32_t>(random.between(0, shape.layers));
    if (random.one_in(3)) made.ratio = .4;
    return made;
  });
}

/// A preset that retains at a prompt's end, and waits for some tokens of the answer.
template <class Preset>
void run_late(std::uint64_t seed) {
  run_batches<Preset>(seed, 6, [](random_source& random, cache_shape const& shape) {
    Preset made{};
    made.tokens = static_cast<std::int32_t>(random.between(20, 60));
    made.window = static_cast<std::int32_t>(random.between(1, 9));
    made.after = static_cast<std::int32_t>(random.between(1, 6));
    if constexpr (requires { made.layers.reuse; }) made.layers.reuse = static_cast<std::int32_t>(random.between(1, 2));
    static_cast<void>(shape);
    return made;
  });
}

TEST_CASE("a decoder's steps choose what the four verbs choose, later: lists of other shapes", "[cuda]") {
  SECTION("pyramidkv, layers of unequal length") { run_late<presets::pyramidkv>(51); }
  SECTION("adakv, lists of unequal length") { run_late<presets::adakv>(52); }
  SECTION("chunkkv, a list for the layer") { run_late<presets::chunkkv>(53); }
}

TEST_CASE("a choice that waits is refused where nothing could make it", "[cuda]") {
  written_batch batch(1);
  auto& [shape, cache, device, exec] = batch;
  presets::snapkv const policy{.tokens = 10, .window = 2, .after = 2};
  CHECK_THROWS_WITH((gpu::decoder<presets::snapkv, test_device>(policy, shape, 2, device, 4)),
                    Catch::Matchers::ContainsSubstring("waits for 2 tokens of the answer, and a step brings up to 4"));
  auto const pair = kvpolicy::policy{policy.parts().retain, presets::infllm{}.parts().retrieve};
  static_assert(!gpu::decodable<std::decay_t<decltype(pair)>, test_device>);
  gpu::decoder<presets::snapkv, test_device> decoder(policy, shape, 2, device);
  std::vector<float> const queries(static_cast<std::size_t>(2 * shape.q_heads * shape.head_dim), .5f);
  prompt_signals told{};
  told.queries = {queries.data(), 2, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, .125f};
  device.send();
  for (std::int64_t l = 0; l < shape.layers; ++l) decoder.prefill(0, cache.view(), 5, {l}, told, exec);
  decoder.plan(std::vector<std::int32_t>{6, 0});
  CHECK_FALSE(decoder.idle());
  CHECK_FALSE(decoder.decides());
  decoder.plan(std::vector<std::int32_t>{7, 0});
  CHECK(decoder.decides());
  CHECK_THROWS_WITH(decoder.plan(std::vector<std::int32_t>{8, 0}),
                    Catch::Matchers::ContainsSubstring("the choice of sequence 0 was due at the last step"));
  for (std::int64_t l = 0; l < shape.layers; ++l) decoder.prefill(0, cache.view(), 5, {l}, told, exec);
  decoder.plan(std::vector<std::int32_t>{6, 0});  // the slot's next request waits anew
}

TEST_CASE("a decoder's steps choose what the four verbs choose: h2o", "[cuda]") {
  run_batches<presets::h2o>(
      7, 16,
      [](random_source& random, cache_shape const& shape) {
        presets::h2o made{.tokens = static_cast<std::int32_t>(random.between(10, 50)), .keep_prompt = random.one_in(4)};
        if (random.one_in(2)) made.reduce = scorers::accumulated_attention::reduction::mean;
        if (random.one_in(3)) made.ratio = .5;
        made.layers = {.dense_first = static_cast<std::int32_t>(random.between(0, shape.layers - 1)),
                       .reuse = static_cast<std::int32_t>(random.between(1, 2))};
        return made;
      },
      false);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: tova", "[cuda]") {
  run_batches<presets::tova>(
      8, 16,
      [](random_source& random, cache_shape const&) {
        presets::tova made{.tokens = static_cast<std::int32_t>(random.between(10, 50)), .keep_prompt = random.one_in(4)};
        if (random.one_in(3)) made.ratio = .5;
        return made;
      },
      false);
}

}  // namespace
}  // namespace kvpolicy_test
