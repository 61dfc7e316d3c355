#include "kvpolicy/gpu/retain/retained.hpp"

#include <catch2/catch_test_macros.hpp>

#include "cuda/batch_run.hpp"
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

TEST_CASE("a decoder's steps choose what the four verbs choose: snapkv", "[cuda]") {
  run_batches<presets::snapkv>(3, 10, [](random_source& random, cache_shape const& shape) {
    presets::snapkv made{.tokens = static_cast<std::int32_t>(random.between(20, 60)),
                         .window = static_cast<std::int32_t>(random.between(1, 9)),
                         .after = 0};
    made.layers.dense_first = static_cast<std::int32_t>(random.between(0, shape.layers));
    if (random.one_in(3)) made.ratio = .4;
    return made;
  });
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
