#include "kvpolicy/primitive/entropy.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "primitive/inputs.hpp"

namespace kvpolicy_test {
namespace {

constexpr cache_shape tiny{1, 1, 1, 1, 1, element_type::f32};

template <class On>
uncertainty entropy_on(On& on, std::vector<float> const& logits) {
  uncertainty result;
  on.run([&](auto& exec) { result = entropy(logits, exec); });
  return result;
}

// Entropy within 1e-5 (1 + entropy), varentropy within 1e-4 (1 + entropy^2 + varentropy): it is a difference of squares.
TEMPLATE_TEST_CASE("entropy and varentropy are those of the softmax", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(41);
  TestType on(tiny);
  for (int round = 0; round < 200; ++round) {
    std::int64_t const n = round < 140 ? round + 1 : random.between(4000, 20000);
    std::vector<float> logits = random.reals(n, random.pick(std::array{.01f, 1.0f, 8.0f, 40.0f}));
    float const shift = random.pick(std::array{0.0f, 300.0f, -300.0f});
    for (float& x : logits) x += shift;
    for (float& x : logits) {
      if (random.one_in(9)) x = -inf;  // a masked word
    }
    logits[static_cast<std::size_t>(random.between(0, n - 1))] = shift + 1;
    auto const [mean, variance] = naive::entropy(logits);
    uncertainty const got = entropy_on(on, logits);
    INFO("round " << round << " words " << n);
    REQUIRE(std::abs(got.entropy - mean) <= 1e-5 * (1 + mean));
    REQUIRE(std::abs(got.varentropy - variance) <= 1e-4 * (1 + mean * mean + variance));
  }
}

TEMPLATE_TEST_CASE("equal logits have entropy log n and no varentropy; one word alone has neither", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  TestType on(tiny);
  for (std::size_t const n : {1u, 2u, 17u, 64u, 4096u, 4097u, 50000u}) {
    uncertainty const got = entropy_on(on, std::vector<float>(n, -3.5f));
    REQUIRE(std::abs(got.entropy - std::log(static_cast<double>(n))) < 1e-4);
    REQUIRE(std::abs(got.varentropy) < 1e-3);
    REQUIRE(got.varentropy >= 0);
  }
  std::vector<float> sure(33, -inf);
  sure[32] = 4;
  REQUIRE(entropy_on(on, sure).entropy == 0);
  REQUIRE(entropy_on(on, sure).varentropy == 0);
}

TEMPLATE_TEST_CASE("a NaN anywhere, or nothing but -inf, makes both NaN", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  TestType on(tiny);
  random_source random(42);
  for (std::int64_t n = 1; n < 70; ++n) {
    uncertainty const nothing = entropy_on(on, std::vector<float>(static_cast<std::size_t>(n), -inf));
    REQUIRE(std::isnan(nothing.entropy));
    REQUIRE(std::isnan(nothing.varentropy));
    for (std::int64_t at = 0; at < n; at += random.between(1, 7)) {
      std::vector<float> logits = random.reals(n, 5);
      logits[static_cast<std::size_t>(at)] = nan;
      uncertainty const got = entropy_on(on, logits);
      INFO("NaN at " << at << " of " << n);
      REQUIRE(std::isnan(got.entropy));
      REQUIRE(std::isnan(got.varentropy));
    }
  }
}

}  // namespace
}  // namespace kvpolicy_test
