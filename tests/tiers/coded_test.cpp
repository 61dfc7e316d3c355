#include "kvpolicy/tiers/coded.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>
#include <limits>

#include "conformance/random_cache.hpp"
#include "tiers/blocks.hpp"

namespace kvpolicy_test {
namespace {

using kvpolicy::element_type;

constexpr std::int64_t elements = 128;

tiers::coded made(element_type from, element_type as) {
  return {tiers::any_tier::of<tiers::host>(tiers::coded::stored_bytes(elements, as), 8), elements, from, as};
}
template <class T>
std::vector<T> through(tiers::coded& tier, std::vector<T> const& values) {
  tiers::block_write const write{{}, reinterpret_cast<std::byte const*>(values.data())};
  REQUIRE(tier.put({&write, 1}));
  std::vector<T> back(values.size());
  tiers::block_read const read{{}, reinterpret_cast<std::byte*>(back.data())};
  REQUIRE(tier.wait(tier.get({&read, 1}), soon()) == tiers::status::done);
  return back;
}

TEST_CASE("a coded tier's rows come back within a step of what they were, and are then as they are") {
  auto const as = GENERATE(element_type::q8_0, element_type::q4_0);
  auto const steps = as == element_type::q8_0 ? 127.0f : 8.0f;
  random_source random(2601);
  for (int round = 0; round < 300; ++round) {
    auto tier = made(element_type::f32, as);
    std::vector<float> values = random.reals(elements, std::pow(10.0f, static_cast<float>(random.between(-3, 3))));
    if (random.one_in(5)) std::fill(values.begin() + 32, values.begin() + 64, 0.0f);
    std::vector<float> const back = through(tier, values);
    for (std::size_t s = 0; s < values.size(); s += 32) {
      float largest = 0;
      float signed_largest = 0;
      for (std::size_t i = s; i < s + 32; ++i) {
        if (std::abs(values[i]) > largest) largest = std::abs(values[i]), signed_largest = values[i];
      }
      for (std::size_t i = s; i < s + 32; ++i) {
        bool const short_end = as == element_type::q4_0 && values[i] * signed_largest < 0;  // 7 steps, not 8
        float const most = largest / steps * (short_end ? 1.02f : .54f);
        INFO("round " << round << " element " << i << " " << values[i] << " came back as " << back[i] << " of " << largest);
        REQUIRE(std::abs(back[i] - values[i]) <= most);
      }
    }
    REQUIRE(through(tier, back) == back);
  }
}

TEST_CASE("a coded tier takes 16-bit rows, and what is no number comes back as one") {
  for (element_type const from : {element_type::f16, element_type::bf16}) {
    auto tier = made(from, element_type::q8_0);
    bool const half = from == element_type::f16;
    std::vector<std::uint16_t> values;
    for (std::int64_t i = 0; i < elements; ++i) {
      float const x = static_cast<float>(i % 32) - 16;
      values.push_back(half ? kvpolicy::float_to_half(x) : kvpolicy::float_to_bfloat(x));
    }
    values[3] = half ? 0x7e00 : 0x7fc0;  // NaN
    std::vector<std::uint16_t> const back = through(tier, values);
    for (std::size_t i = 0; i < back.size(); ++i) {
      float const x = half ? kvpolicy::half_to_float(back[i]) : kvpolicy::bfloat_to_float(back[i]);
      REQUIRE(std::abs(x - (i == 3 ? 0.0f : static_cast<float>(i % 32) - 16)) < .13f);
    }
  }
  auto tier = made(element_type::f32, element_type::q4_0);
  std::vector<float> values(static_cast<std::size_t>(elements), 1.0f);
  values[0] = std::numeric_limits<float>::infinity();
  std::vector<float> const back = through(tier, values);  // of its 32 elements nothing is left; the others are whole
  REQUIRE(!std::isfinite(back[0]));
  for (std::size_t i = 32; i < back.size(); ++i) REQUIRE(back[i] == 1.0f);
}

TEST_CASE("a coded tier says what it takes, and what it is") {
  REQUIRE(tiers::coded::stored_bytes(128, element_type::q8_0) == 136);
  REQUIRE(tiers::coded::stored_bytes(128, element_type::q4_0) == 72);
  REQUIRE_THROWS_AS(tiers::coded::stored_bytes(128, element_type::q5_0), kvpolicy::invalid_value);
  REQUIRE_THROWS_AS(tiers::coded::stored_bytes(40, element_type::q8_0), kvpolicy::invalid_value);
  REQUIRE_THROWS_AS(made(element_type::q8_0, element_type::q8_0), kvpolicy::invalid_value);
  REQUIRE_THROWS_AS((tiers::coded{tiers::any_tier::of<tiers::host>(100, 8), elements, element_type::f32, element_type::q8_0}),
                    kvpolicy::invalid_value);
  auto tier = made(element_type::f16, element_type::q8_0);
  REQUIRE(tier.block_bytes() == 2 * elements);
  REQUIRE(tier.describe().ends_with("as q8_0"));
}

}  // namespace
}  // namespace kvpolicy_test
