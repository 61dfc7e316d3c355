#include "kvpolicy/exec/host_row.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>

namespace kvpolicy {
namespace {

TEST_CASE("the oracle smooths a row by hand-made numbers", "[exec]") {
  constexpr std::array<double, 4> row{1, 5, 2, 0};
  auto const at = [&](smoothing::kind how, std::int64_t i) { return host::smoothed(row, i, {.how = how, .width = 3}); };
  CHECK(at(smoothing::kind::none, 1) == 5);
  CHECK(at(smoothing::kind::maximum, 0) == 5);
  CHECK(at(smoothing::kind::maximum, 3) == 2);
  CHECK(std::abs(at(smoothing::kind::average, 1) - 8.0 / 3) < 1e-12);
  CHECK(at(smoothing::kind::average, 0) == 2);  // beyond the ends are zeros
  std::array<double, 2> const unknown{std::nan(""), 1};
  CHECK(std::isnan(host::smoothed(unknown, 0, {.how = smoothing::kind::average, .width = 3})));
}

TEST_CASE("the oracle's entropy and its variance are those of probabilities by hand", "[exec]") {
  auto const even = host::entropy(std::array{3.f, 3.f, 3.f, 3.f});
  CHECK(std::abs(even.entropy - std::log(4.f)) < 1e-6f);
  CHECK(even.varentropy < 1e-6f);
  auto const one_to_three = host::entropy(std::array{0.f, std::log(3.f)});  // 1/4 and 3/4
  CHECK(std::abs(one_to_three.entropy - (std::log(4.f) - .75f * std::log(3.f))) < 1e-6f);
  CHECK(std::abs(one_to_three.varentropy - .1875f * std::log(3.f) * std::log(3.f)) < 1e-6f);  // p (1 - p) ln(3)^2
  auto const sure = host::entropy(std::array{0.f, 1000.f});
  CHECK(sure.entropy == 0);
  CHECK(sure.varentropy == 0);
}

}  // namespace
}  // namespace kvpolicy
