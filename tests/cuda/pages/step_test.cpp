#include "kvpolicy/gpu/pages/step.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "cuda/batch_run.hpp"
#include "kvpolicy/compose.hpp"
#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

TEST_CASE("a decoder's steps choose what the four verbs choose: quest", "[cuda]") {
  run_batches<presets::quest>(4, 24, [](random_source& random, cache_shape const& shape) {
    presets::quest made = random.one_in(2) ? presets::quest::paper() : presets::quest{};
    made.page = static_cast<std::int32_t>(random.between(1, 12));
    made.tokens = static_cast<std::int32_t>(random.between(3 * made.page, 60));
    made.layers = {.dense_first = static_cast<std::int32_t>(random.between(0, 1)),
                   .reuse = static_cast<std::int32_t>(random.between(1, 2))};
    made.metadata = pools::bounds::kind::range;  // exact; spreads are not
    made.recent_pages = static_cast<std::int32_t>(random.between(1, 2));
    if (random.one_in(4)) made.ratio = .5;
    if (random.one_in(3)) made.after = static_cast<std::int32_t>(random.between(1, 6));
    static_cast<void>(shape);
    return made;
  });
}

#if !defined(KVPOLICY_TEST_GPU)  // a scorer of one function reads rows on the host
/// As examples/own_policy: a scorer of one function, and quest's pages of what it retains.
TEST_CASE("a decoder's steps choose what the four verbs choose: a scorer of one's own", "[cuda]") {
  static constexpr auto value_recency =
      score_tokens([](auto, auto value, auto age) { return norm(value) * std::exp(-static_cast<float>(age) / 512.f); });
  auto const made = [](std::int32_t tokens, std::int32_t read) {
    return retain(value_recency, {.tokens = tokens, .sinks = 4}) + presets::quest{.tokens = read, .page = 4};
  };
  run_batches<decltype(made(0, 0))>(35, 12, [&](random_source& random, cache_shape const&) {
    return made(narrow(random.between(40, 80)), narrow(random.between(16, 40)));
  });
}
#endif

TEST_CASE("a decoder's steps choose what the four verbs choose: infllm", "[cuda]") {
  run_batches<presets::infllm>(
      12, 20,
      [](random_source& random, cache_shape const& shape) {
        presets::infllm made{};
        made.block = static_cast<std::int32_t>(random.between(2, 7));
        made.representatives = static_cast<std::int32_t>(random.between(1, made.block));
        made.local = static_cast<std::int32_t>(random.between(1, 9));
        made.pre_rope = random.one_in(2);
        made.tokens = static_cast<std::int32_t>(random.between(5 * made.block, 60));
        made.layers = {.dense_first = static_cast<std::int32_t>(random.between(0, shape.layers - 1)),
                       .reuse = static_cast<std::int32_t>(random.between(1, 2))};
        return made;
      },
      false, false, true);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: rocketkv", "[cuda]") {
  run_batches<presets::rocketkv>(
      18, 16,
      [](random_source& random, cache_shape const& shape) {
        return presets::rocketkv{.tokens = static_cast<std::int32_t>(random.between(16, 36)),
                                 .kept = static_cast<std::int32_t>(random.between(40, 80)),
                                 .window = static_cast<std::int32_t>(random.between(1, 9)),
                                 .page = static_cast<std::int32_t>(random.between(1, 4)),
                                 .channels = static_cast<std::int32_t>(random.between(0, shape.head_dim)),
                                 .group = random.one_in(2) ? group_merge::maximum : group_merge::mean,
                                 .after = random.one_in(2) ? narrow(random.between(1, 6)) : 0};
      },
      false);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: twilight", "[cuda]") {
  run_batches<presets::twilight>(
      19, 20,
      [](random_source& random, cache_shape const& shape) {
        presets::twilight made = random.one_in(2) ? presets::twilight::paper() : presets::twilight{};
        made.page = narrow(random.between(1, 7));
        made.tokens = narrow(random.between(4 * made.page, 60));
        if (random.one_in(2)) made.ratio = {};
        made.mass = random.one_in(4) ? 1 : .3 + .6 * std::abs(random.real());
        made.mass = std::min(made.mass, 1.0);
        made.layers = {.dense_first = narrow(random.between(0, shape.layers - 1)), .reuse = narrow(random.between(1, 2))};
        return made;
      },
      false, true, true);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: omnikv", "[cuda]") {
  run_batches<presets::omnikv>(
      17, 20,
      [](random_source& random, cache_shape const& shape) {
        presets::omnikv made{.tokens = static_cast<std::int32_t>(random.between(24, 60)),
                             .sinks = static_cast<std::int32_t>(random.between(0, 4)),
                             .recent = static_cast<std::int32_t>(random.between(1, 9)),
                             .generated = random.one_in(2)};
        if (random.one_in(3)) made.ratio = .6;
        if (random.one_in(2))
          made.smooth = {.how = random.one_in(2) ? smoothing::kind::average : smoothing::kind::maximum, .width = 5};
        made.layers = {.dense_first = static_cast<std::int32_t>(random.between(0, shape.layers - 1)),
                       .reuse = static_cast<std::int32_t>(random.between(1, 3)),
                       .whole = static_cast<std::int32_t>(random.between(0, 1))};
        return made;
      },
      false);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: quest by mean and spread", "[cuda]") {
  run_batches<presets::quest>(
      11, 12,
      [](random_source& random, cache_shape const&) {
        return presets::quest{.tokens = static_cast<std::int32_t>(random.between(24, 60)),
                              .after = static_cast<std::int32_t>(random.between(0, 3))};
      },
      false);
}

TEST_CASE("quest scores pages on tensor cores, beside the pooling of a step's key", "[cuda]") {
  auto const how = GENERATE(pools::bounds::kind::range, pools::bounds::kind::mean_deviation);
  auto const type = GENERATE(element_type::f16, element_type::bf16);
  std::int64_t const dim = GENERATE(64, 96, 128, 256);  // rows that the tensor cores' kernels take
  CAPTURE(how, type, dim);
  random_source random(31);
  presets::quest policy{.tokens = 40};
  policy.metadata = how;
  cache_shape const shape{.layers = 1, .q_heads = 4, .kv_heads = 2, .head_dim = dim, .max_tokens = 120, .type = type};
  batch_run<presets::quest> run(policy, shape, 2, false, random);
  REQUIRE(run.step().empty());
  run.begin(0, 90);
  run.begin(1, 61);
  for (int step = 0; step < 6; ++step) REQUIRE(run.step() == "");
}

/// Quest's pages of what another method retained, each head's own or a layer's.
template <class Retain>
void run_quest_over(std::uint64_t seed, pools::bounds::kind how = pools::bounds::kind::range) {
  using pair = decltype(policy{Retain{}.parts().retain, presets::quest{}.parts().retrieve});
  run_batches<pair>(
      seed, 10,
      [how](random_source& random, cache_shape const& shape) {
        Retain retain{};
        retain.after = random.one_in(2) ? narrow(random.between(1, 6)) : 0;
        retain.tokens = static_cast<std::int32_t>(random.between(40, 80));
        retain.layers.dense_first = static_cast<std::int32_t>(random.between(0, 1));
        presets::quest made = random.one_in(2) ? presets::quest::paper() : presets::quest{};
        made.page = static_cast<std::int32_t>(random.between(1, 7));
        made.tokens = static_cast<std::int32_t>(random.between(3 * made.page, 36));
        made.layers = {.dense_first = static_cast<std::int32_t>(random.between(0, shape.layers - 1))};
        made.metadata = how;
        return policy{retain.parts().retain, made.parts().retrieve};
      },
      how == pools::bounds::kind::range, true, how != pools::bounds::kind::range);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: quest over what is retained", "[cuda]") {
  SECTION("snapkv, a list for each head") { run_quest_over<presets::snapkv>(13); }
  SECTION("snapkv, pages by mean and spread") { run_quest_over<presets::snapkv>(20, pools::bounds::kind::mean_deviation); }
  SECTION("adakv, lists of unequal length") { run_quest_over<presets::adakv>(14); }
  SECTION("pyramidkv, layers of unequal length") { run_quest_over<presets::pyramidkv>(15); }
  SECTION("chunkkv, a list for the layer") { run_quest_over<presets::chunkkv>(16); }
}

}  // namespace
}  // namespace kvpolicy_test
