#include "kvpolicy/primitive/cascade.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "conformance/rounds.hpp"

namespace kvpolicy_test {
namespace {

/// max(1, ceil(percent / 100 * live)) in whole numbers.
std::int64_t kept_of(std::int64_t percent, std::int64_t live) {
  return live == 0 ? 0 : std::max<std::int64_t>(1, (percent * live + 99) / 100);
}

TEST_CASE("a fraction keeps max(1, ceil(fraction of the live)), as the decimal reads", "[primitive]") {
  for (std::int64_t percent = 1; percent <= 100; ++percent) {
    for (std::int64_t live = 0; live <= 3000; live = live < 400 ? live + 1 : live + 97) {
      REQUIRE(fraction_of(static_cast<float>(percent) / 100.0f, live) == kept_of(percent, live));
    }
  }
}

// Anchor and vectors are small whole numbers: scores are exact, ties many, and the sets must be equal.
TEMPLATE_TEST_CASE("cascade keeps the best of the live units at each level, and reads no dead ones", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(61);
  for (int round = 0; round < rounds_of(300); ++round) {
    std::int64_t const dims = random.between(1, 40);
    std::int64_t const depth = random.between(1, 3);
    std::int64_t units = random.between(1, 300);
    std::vector<float> anchor;
    for (std::int64_t d = 0; d < dims; ++d) anchor.push_back(static_cast<float>(random.between(-2, 2)));
    std::vector<std::vector<float>> vectors(static_cast<std::size_t>(depth));
    std::vector<cascade_level> levels(vectors.size());
    std::vector<std::int64_t> percents(vectors.size());
    for (std::size_t l = levels.size(); l-- > 0;) {
      std::int64_t const fan_out = l + 1 == levels.size() ? 1 : random.between(1, 9);
      units = (units + fan_out - 1) / fan_out;
      // All negative in one case of three: where a dead unit's zero would win.
      std::int64_t const high = round % 3 == 0 ? -1 : 3;
      for (std::int64_t i = 0; i < units * dims; ++i) vectors[l].push_back(static_cast<float>(random.between(-3, high)));
      percents[l] = random.between(1, 100);
      levels[l] = {{vectors[l].data(), units, dims, dims}, fan_out, static_cast<float>(percents[l]) / 100.0f};
    }
    std::vector<std::int32_t> live(static_cast<std::size_t>(levels[0].vectors.rows));
    std::iota(live.begin(), live.end(), 0);
    for (std::size_t l = 0; l < levels.size(); ++l) {
      std::vector<float> scores;
      for (std::int32_t const u : live) {
        float sum = 0;
        for (std::int64_t d = 0; d < dims; ++d) {
          sum += anchor[static_cast<std::size_t>(d)] * vectors[l][static_cast<std::size_t>(u * dims + d)];
        }
        scores.push_back(sum);
      }
      std::vector<std::int32_t> kept;
      for (std::int32_t const i : naive::top_k(scores, kept_of(percents[l], static_cast<std::int64_t>(live.size())))) {
        kept.push_back(live[static_cast<std::size_t>(i)]);
      }
      live = kept;
      if (l + 1 == levels.size()) break;
      std::vector<std::int32_t> children;
      for (std::int64_t u = 0; u < levels[l + 1].vectors.rows; ++u) {
        bool const of_kept = std::binary_search(kept.begin(), kept.end(), static_cast<std::int32_t>(u / levels[l].fan_out));
        if (of_kept) children.push_back(static_cast<std::int32_t>(u));
        // A dead unit's vector must not be read: infinity would win.
        else std::fill_n(vectors[l + 1].begin() + u * dims, dims, std::numeric_limits<float>::infinity());
      }
      live = children;
    }
    TestType on({1, 1, 1, 1, 512, element_type::f32});
    cascade_scratch scratch(512);
    std::vector<std::int32_t> got;
    on.run([&](auto& exec) {
      auto const kept = cascade(anchor, levels, scratch, exec);
      got.assign(kept.begin(), kept.end());
    });
    INFO("round " << round);
    REQUIRE(got == live);
  }
}

TEMPLATE_TEST_CASE("a cascade of no units keeps none", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  TestType on({1, 1, 1, 1, 8, element_type::f32});
  cascade_scratch scratch(8);
  std::vector<float> const anchor(3);
  std::array const levels{cascade_level{{nullptr, 0, 3, 3}, 2, .5f}, cascade_level{{nullptr, 0, 3, 3}, 1, .5f}};
  std::size_t kept = 9;
  on.run([&](auto& exec) { kept = cascade(anchor, levels, scratch, exec).size(); });
  REQUIRE(kept == 0);
}

}  // namespace
}  // namespace kvpolicy_test
