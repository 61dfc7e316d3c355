#include "kvpolicy/gpu/sentences/step.hpp"

#include <catch2/catch_test_macros.hpp>

#include "cuda/batch_run.hpp"
#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

TEST_CASE("a decoder's steps choose what the four verbs choose: sentencekv", "[cuda]") {
  static constexpr std::array<std::uint8_t, 19> boundary{0, 1, 0, 0, 1, 0, 0, 0, 0, 1};
  run_batches<presets::sentencekv>(
      6, 24,
      [](random_source& random, cache_shape const& shape) {
        presets::sentencekv made{.tokens = static_cast<std::int32_t>(random.between(14, 40)),
                                 .keep = random.one_in(2) ? 1.5 : 1};
        made.after = random.one_in(2) ? static_cast<std::int32_t>(random.between(1, 6)) : 0;
        made.sentences.boundary = boundary;
        made.sentences.shortest = static_cast<std::int32_t>(random.between(1, 3));
        made.sentences.longest = static_cast<std::int32_t>(random.between(3, 20));
        made.all_after_boundary = random.one_in(3);
        made.generated = random.one_in(3);
        made.all_heads = random.one_in(3);
        made.spread = random.one_in(2);
        made.carry = random.one_in(2) ? 1 : .5f;
        made.standing = random.one_in(3) ? 0 : .5;
        made.layers.dense_first = static_cast<std::int32_t>(random.between(0, shape.layers - 1));
        if (random.one_in(4)) made.ratio = .5;
        return made;
      },
      false, false);
}

}  // namespace
}  // namespace kvpolicy_test
