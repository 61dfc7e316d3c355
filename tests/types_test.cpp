#include "kvpolicy/types.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <concepts>
#include <limits>

#include "conformance/random_cache.hpp"
#include "kvpolicy/queries.hpp"

namespace kvpolicy_test {
namespace {

/// A half's value from its fields.
double value_of(std::uint16_t half) {
  int const exponent = (half >> 10) & 31;
  double const fraction = half & 1023;
  double const size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -size : size;
}

TEST_CASE("every half is widened to its value, and comes back as it was", "[types]") {
  std::int64_t wrong = 0;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    auto const half = static_cast<std::uint16_t>(bits);
    float const wide = half_to_float(half);
    if ((half & 0x7c00) == 0x7c00) {
      bool const nan = (half & 0x3ff) != 0;
      if (std::isnan(wide) != nan || (!nan && !std::isinf(wide))) ++wrong;
      if (nan ? !std::isnan(half_to_float(float_to_half(wide))) : float_to_half(wide) != half) ++wrong;
    } else if (wide != value_of(half) || std::signbit(wide) != ((half & 0x8000) != 0) || float_to_half(wide) != half) {
      ++wrong;
    }
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("a float becomes the nearest half, ties to even, and overflows to infinity", "[types]") {
  random_source random(171);
  std::int64_t wrong = 0;
  for (int i = 0; i < 300000; ++i) {
    float x = std::ldexp(random.real(), static_cast<int>(random.between(-28, 15)));
    // Exactly between two halves in one case of four.
    if (i % 4 == 0) {
      auto const half = static_cast<std::uint16_t>(random.between(0, 0x7bfe));
      x = static_cast<float>((value_of(half) + value_of(static_cast<std::uint16_t>(half + 1))) / 2);
    }
    std::uint16_t const half = float_to_half(x);
    if ((half & 0x7fff) > 0x7bff) {
      ++wrong;
      continue;
    }
    double const distance = std::abs(value_of(half) - x);
    for (int const step : {-1, 1}) {
      if (((half & 0x7fff) == 0 && step < 0) || ((half & 0x7fff) == 0x7bff && step > 0)) continue;
      double const other = std::abs(value_of(static_cast<std::uint16_t>(half + step)) - x);
      if (other < distance || (other == distance && half % 2 != 0)) ++wrong;
    }
  }
  REQUIRE(wrong == 0);
  REQUIRE(float_to_half(65519.99f) == 0x7bff);
  REQUIRE(float_to_half(65520.0f) == 0x7c00);
  REQUIRE(float_to_half(-1e30f) == 0xfc00);
  REQUIRE(float_to_half(std::ldexp(1.0f, -25)) == 0);
  REQUIRE(float_to_half(std::nextafter(std::ldexp(1.0f, -25), 1.0f)) == 1);
  REQUIRE(float_to_half(-0.0f) == 0x8000);
}

TEST_CASE("every bfloat is widened and comes back, and a float becomes the nearest", "[types]") {
  std::int64_t wrong = 0;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    auto const half = static_cast<std::uint16_t>(bits);
    float const wide = bfloat_to_float(half);
    if (std::isnan(wide) ? !std::isnan(bfloat_to_float(float_to_bfloat(wide))) : float_to_bfloat(wide) != half) ++wrong;
  }
  REQUIRE(wrong == 0);
  REQUIRE(bfloat_to_float(0x3f80) == 1.0f);
  REQUIRE(float_to_bfloat(1.00390625f) == 0x3f80);  // halfway: to even
  REQUIRE(float_to_bfloat(1.01171875f) == 0x3f82);  // halfway: to even
  REQUIRE(float_to_bfloat(std::nextafter(1.00390625f, 2.0f)) == 0x3f81);
  REQUIRE(float_to_bfloat(std::numeric_limits<float>::max()) == 0x7f80);
  REQUIRE(std::isnan(bfloat_to_float(float_to_bfloat(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("indices of different kinds do not convert into each other", "[types]") {
  STATIC_REQUIRE_FALSE(std::convertible_to<layer_id, head_id>);
  STATIC_REQUIRE_FALSE(std::convertible_to<head_id, token_index>);
  STATIC_REQUIRE(layer_id{1} < layer_id{2});
  STATIC_REQUIRE(size_of(element_type::f32) == 4);
  STATIC_REQUIRE(size_of(element_type::f16) == 2);
  STATIC_REQUIRE(size_of(element_type::bf16) == 2);
}

TEST_CASE("tables and queries step by their strides", "[types]") {
  std::vector<float> cells;
  for (int i = 0; i < 60; ++i) cells.push_back(static_cast<float>(i));
  table<float> const wide{cells.data(), 3, 4, 10};
  REQUIRE(wide(2, 3) == 23);
  REQUIRE(table<float const>(wide).row(1)[0] == 10);
  REQUIRE(*query_heads{cells.data(), 3, 7, 1}.head(2) == 14);
  REQUIRE(*query_window{cells.data(), 2, 3, 21, 7, 1}.at(1, 2) == 35);
}

}  // namespace
}  // namespace kvpolicy_test
