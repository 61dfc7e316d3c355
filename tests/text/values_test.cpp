#include "kvpolicy/text/values.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <limits>

using namespace kvpolicy;

TEST_CASE("a number is read whole and finite, or not at all") {
  double value = 7;
  for (char const* bad : {"", "x", "1x", " 1", "nan", "-nan", "inf", "-inf", "1e999"}) {
    CAPTURE(bad);
    CHECK_FALSE(text::parse_number(bad, value));
    CHECK(value == 7);
  }
  CHECK(text::parse_number("-2.5e-3", value));
  CHECK(value == -2.5e-3);
  int count = 7;
  for (char const* bad : {"", "1.5", "0x10", "99999999999999999999"}) CHECK_FALSE(text::parse_number(bad, count));
  CHECK(text::parse_number("-12", count));
  CHECK(count == -12);
}

TEST_CASE("what a number is printed as reads back as the same number") {
  for (float const value : {0.f, 1.f, .1f, -3.25e-9f, 1.f / 3, std::numeric_limits<float>::max(), 1e-45f}) {
    float back = -1;
    REQUIRE(text::parse_number(text::shortest(value), back));
    CHECK(back == value);
  }
  CHECK(text::shortest(.1f) == "0.1");
  CHECK(text::shortest(512) == "512");
}

TEST_CASE("a set of layers reads back as it is printed") {
  for (char const* const layers : {"0", "2/8/18", "63/64/255"}) {
    layer_set read;
    REQUIRE(text::parse(layers, read));
    CHECK(text::print(read) == layers);
  }
  layer_set read = layer_set::of(std::array{3});
  for (char const* const bad : {"", "/", "1/", "/1", "a", "1/256", "-1", "1,2"}) {
    CAPTURE(bad);
    CHECK_FALSE(text::parse(bad, read));
    CHECK(read == layer_set::of(std::array{3}));
  }
  CHECK(text::print(layer_set{}).empty());
}
