#include "kvpolicy/primitive/top_k.hpp"

#include <bit>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "conformance/rounds.hpp"
#include "primitive/inputs.hpp"

namespace kvpolicy_test {
namespace {

/// Scores of one hostile kind.
std::vector<float> hostile(std::int64_t n, std::int64_t kind, random_source& random) {
  std::vector<float> scores = random.reals(n);
  for (float& s : scores) {
    switch (kind) {
      case 0:
        break;
      case 1:
        s = static_cast<float>(random.between(0, 2));
        break;
      case 2:
        s = -1.25f;
        break;
      case 3:
        s = random.one_in(3) ? nan : s;
        break;
      case 4:
        s = random.pick(std::array{inf, -inf, 0.0f, -0.0f, nan, -nan});
        break;
      case 5:
        s *= 1e-40f;  // denormals and zeros of both signs
        break;
      case 6:
        s -= 2;
        break;
      case 7:
        s = random.one_in(2) ? 0.0f : -0.0f;
        break;
      case 8:
        s = nan;
        break;
      default:
        s = random.pick(std::array{1.0f, std::nextafter(1.0f, 2.0f), std::nextafter(1.0f, 0.0f), -1.0f, -1.0000001f});
    }
  }
  return scores;
}
constexpr std::int64_t hostile_kinds = 10;

/// What the executor writes for one row, with a guard behind it.
template <class Exec>
std::vector<std::int32_t> chosen(Exec& exec, std::vector<float> const& scores, std::int64_t k) {
  auto const n = static_cast<std::int64_t>(scores.size());
  std::vector<std::int32_t> indices(static_cast<std::size_t>(k + 1), -7);
  std::array const ks{static_cast<std::int32_t>(k)};
  top_k(table<float const>{scores.data(), 1, n, n}, ks, table<std::int32_t>{indices.data(), 1, k, k}, exec);
  auto const kept = static_cast<std::size_t>(std::min(k, n));
  bool const clean = indices[kept] == -7;
  indices.resize(clean ? kept : kept + 1);
  return indices;
}

TEMPLATE_TEST_CASE("top_k is exact in random hostile cases", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(51);
  constexpr std::array<std::int64_t, 12> edges{0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129};
  TestType on({1, 1, 1, 1, 400, element_type::f32});
  std::int64_t wrong = 0;
  std::int64_t cases = 0;
  on.run([&](auto& exec) {
    for (; cases < rounds_of(20000); ++cases) {
      std::int64_t const n = random.one_in(2) ? random.pick(edges) : random.between(0, 200);
      std::int64_t const k = random.pick(std::array<std::int64_t, 6>{0, 1, n - 1, n, n + 1, random.between(0, n)});
      std::vector<float> const scores = hostile(n, cases % hostile_kinds, random);
      if (chosen(exec, scores, std::max<std::int64_t>(k, 0)) != naive::top_k(scores, std::max<std::int64_t>(k, 0))) ++wrong;
    }
  });
  REQUIRE(cases == rounds_of(20000));
  REQUIRE(wrong == 0);
}

TEMPLATE_TEST_CASE("top_k is exact on the fixed grid of lengths", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(52);
  TestType on({1, 1, 1, 1, 262209, element_type::f32});
  for (std::int64_t const n : {0, 1, 2, 63, 64, 65, 127, 128, 129, 8320, 13000, 262209}) {
    for (std::int64_t const wanted : {std::int64_t{0}, std::int64_t{1}, n / 16, n - 1, n, n + 1}) {
      std::int64_t const k = std::max<std::int64_t>(0, wanted);
      for (std::int64_t kind = 0; kind < hostile_kinds; ++kind) {
        // The oracle sorts: of the long ones a third, or in a usual run a ninth.
        if (n > 100000 && (kind + wanted) % (rounds_of(20) < 20 ? 9 : 3) != 0) continue;
        std::vector<float> const scores = hostile(n, kind, random);
        std::vector<std::int32_t> got;
        on.run([&](auto& exec) { got = chosen(exec, scores, k); });
        INFO("n " << n << " k " << k << " kind " << kind);
        REQUIRE(got == naive::top_k(scores, k));
      }
    }
  }
}

TEMPLATE_TEST_CASE("top_k takes each row's own k, and strides wider than the rows", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(53);
  for (int round = 0; round < 100; ++round) {
    std::int64_t const rows = random.between(1, 9);
    std::int64_t const n = random.between(1, 900);
    std::int64_t const stride = n + random.between(0, 20);
    std::vector<float> scores(static_cast<std::size_t>(rows * stride), inf);
    std::vector<std::int32_t> k;
    std::vector<std::vector<std::int32_t>> want;
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<float> const row = hostile(n, random.between(0, hostile_kinds - 1), random);
      std::copy(row.begin(), row.end(), scores.begin() + r * stride);
      k.push_back(static_cast<std::int32_t>(random.between(0, n)));
      want.push_back(naive::top_k(row, k.back()));
    }
    std::vector<std::int32_t> indices(static_cast<std::size_t>(rows * n), -7);
    bool const many = round % 2 == 1;  // rows, for an executor that was made for one
    TestType on(many ? cache_shape{1, 1, 1, 1, rows * n, element_type::f32}
                     : cache_shape{1, rows, rows, 1, n, element_type::f32});
    on.run([&](auto& exec) {
      top_k(table<float const>{scores.data(), rows, n, stride}, k, table<std::int32_t>{indices.data(), rows, n, n}, exec);
    });
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<std::int32_t>& row = want[static_cast<std::size_t>(r)];
      row.resize(static_cast<std::size_t>(n), -7);  // what lies behind k is not touched
      REQUIRE(std::equal(row.begin(), row.end(), indices.begin() + r * n));
    }
  }
}

TEST_CASE("sortable_key orders as floats do, joins both zeros and puts NaN last", "[primitive]") {
  random_source random(54);
  std::int64_t wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    // Any bits: denormals, infinities and NaN among them. Half of the pairs are neighbours.
    auto const bits = static_cast<std::uint32_t>(random.between(0, 0xffffffff));
    auto const a = std::bit_cast<float>(bits);
    auto const b = std::bit_cast<float>(i % 2 == 0 ? bits + 1 : static_cast<std::uint32_t>(random.between(0, 0xffffffff)));
    if (std::isnan(a) || std::isnan(b)) continue;
    if ((sortable_key(a) < sortable_key(b)) != (a < b) || (sortable_key(a) == sortable_key(b)) != (a == b)) ++wrong;
  }
  REQUIRE(wrong == 0);
  REQUIRE(sortable_key(0.0f) == sortable_key(-0.0f));
  REQUIRE(sortable_key(nan) == 0);
  REQUIRE(sortable_key(-nan) == 0);
  REQUIRE(sortable_key(-inf) > 0);
  REQUIRE(sortable_key(1e-45f) > sortable_key(0.0f));
  REQUIRE(sortable_key(-1e-45f) < sortable_key(0.0f));
}

}  // namespace
}  // namespace kvpolicy_test
