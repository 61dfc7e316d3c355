#include "kvpolicy/gpu/drift/step.hpp"

#include <catch2/catch_test_macros.hpp>

#include "cuda/batch_run.hpp"
#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

TEST_CASE("a decoder's steps choose what the four verbs choose: heterocache", "[cuda]") {
  std::vector<head_profile> profile;
  run_batches<presets::heterocache>(
      9, 24,
      [&](random_source& random, cache_shape const& shape) {
        profile.clear();
        for (std::int64_t l = 0; l < shape.layers; ++l) {
          for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
            head_role const alone = random.one_in(2) ? head_role::anchor : head_role::shifting;
            head_role const role = h == 0 ? head_role::pivot : random.one_in(3) ? alone : head_role::satellite;
            profile.push_back(
                {.role = role, .pivot = role == head_role::satellite ? 0 : -1, .stability = .1f + std::abs(random.real())});
          }
        }
        return presets::heterocache{
            .heads = profile,
            .tokens = static_cast<std::int32_t>(random.between(60, 90)),
            .full_share = random.one_in(2) ? .6 : .1,
            .watch = random.one_in(3) ? budgets::by_head_role::watched::whole : budgets::by_head_role::watched::all,
            .own = random.one_in(3),
            .window = 1 + 2 * static_cast<std::int32_t>(random.between(0, 1)),
            .every = static_cast<std::int32_t>(random.between(3, 6)),
            .drift = .9f,
            .group = random.one_in(3) ? group_merge::maximum : group_merge::mean,
            .chance_corrected = random.one_in(3),
            .observe = static_cast<std::int32_t>(random.between(1, 4)),
            .monitor_smooth = random.one_in(2) ? 1 : 3,
            .least = 4,
            .after = random.one_in(2) ? static_cast<std::int32_t>(random.between(1, 6)) : 0,
            .next_step = random.one_in(2)};
      },
      false);
}

}  // namespace
}  // namespace kvpolicy_test
