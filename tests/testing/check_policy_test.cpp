// Every preset keeps a policy's promises, and a policy that breaks one is found.
#include "kvpolicy/testing/check_policy.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "conformance/small_presets.hpp"
#include "kvpolicy/compose.hpp"
#include "kvpolicy/exec/simd.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "kvpolicy/presets/lagkv.hpp"

namespace kvpolicy::testing {
namespace {

TEST_CASE("every preset keeps a policy's promises, on the oracle and on the compiled executor", "[testing]") {
  int presets = 0;
  presets::all::each([&](auto const& preset) {
    ++presets;
    INFO(preset.name);
    auto const policy = kvpolicy_test::small(preset);
    REQUIRE_NOTHROW(check_policy(policy));
    policy_options const options;
#if defined(KVPOLICY_TEST_SIMD)
    REQUIRE_NOTHROW(check_policy(policy, options, simd_exec(options.shape)));
#endif
  });
  REQUIRE(presets == 24);
}

TEST_CASE("policies in a line keep a policy's promises", "[testing]") {
  auto const value_recency =
      score_tokens([](auto, auto value, auto age) { return norm(value) * std::exp(-static_cast<float>(age) / 32); });
  REQUIRE_NOTHROW(check_policy(retain(value_recency, {.tokens = 40, .sinks = 4})));
  REQUIRE_NOTHROW(check_policy(retrieve(value_recency, {.tokens = 40, .page = 4, .recent = 8})));
  REQUIRE_NOTHROW(check_policy(retain(value_recency, {.tokens = 60}) + presets::quest{.tokens = 24, .page = 4}));
}

/// Forgets how it chose: a counter that its parts share.
struct moody {
  static constexpr signals needs = signals::none;
  static constexpr scope granularity = scope::layer;
  static constexpr scored of = scored::tokens;
  static constexpr no_memory start(cache_shape const&) noexcept { return {}; }
  template <class Input, executor Exec>
  void score(Input const&, table<float> out, Exec&) const {
    static int calls = 0;
    for (std::int64_t t = 0; t < out.columns; ++t) out(0, t) = static_cast<float>((t * 7919 + ++calls) % 101);
  }
};

TEST_CASE("a policy that chooses otherwise for the same verbs is found", "[testing]") {
  policy const made{keep_all{}, keep{segments::tokens{}, pools::none{}, moody{}, budgets::tokens{20}, selectors::top_of_layer{},
                                     windows::tokens{}, triggers::every_step{}}};
  using Catch::Matchers::ContainsSubstring;
  REQUIRE_THROWS_MATCHES(check_policy(made), broken_promise,
                         Catch::Matchers::MessageMatches(ContainsSubstring("choose otherwise")));
}

}  // namespace
}  // namespace kvpolicy::testing
