#include "kvpolicy/pools/bounds.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "kvpolicy/exec/host.hpp"

namespace kvpolicy {
namespace {

/// Two layers, `heads` heads, two channels, of floats: key t of layer l and head h is (10 l + t, -t - 100 h).
struct counted_cache {
  std::vector<float> keys;
  strided_view<> view;

  explicit counted_cache(std::int64_t tokens, std::int64_t heads = 1) : keys(static_cast<std::size_t>(4 * heads * tokens)) {
    for (std::int64_t l = 0; l < 2; ++l) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          keys[static_cast<std::size_t>(2 * ((l * heads + h) * tokens + t))] = static_cast<float>(10 * l + t);
          keys[static_cast<std::size_t>(2 * ((l * heads + h) * tokens + t) + 1)] = static_cast<float>(-t - 100 * h);
        }
      }
    }
    auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
    byte_strides const strides{.layer = 8 * heads * tokens, .head = 8 * tokens, .token = 8, .dim = 4};
    view = {{2, heads, heads, 2, tokens, element_type::f32}, tokens, base, base, strides, strides};
  }
};

std::vector<float> unit_of(pools::bounds::summaries& s, std::int64_t layer, std::int64_t unit, std::int64_t head = 0) {
  std::vector<float> values(4);
  std::memcpy(values.data(), s.of({layer}).unit(head, unit), 16);
  return values;
}

TEST_CASE("each layer has bounds of its own: maxima, then minima", "[pool]") {
  counted_cache const cache(10);
  pools::bounds const pool;
  auto summaries = pool.start(cache.view.shape(), segments::pages{4});
  host_exec exec;
  pool.update(summaries, cache.view, {0}, {0, 1}, 10, exec);
  pool.update(summaries, cache.view, {1}, {0, 1}, 10, exec);
  REQUIRE(unit_of(summaries, 0, 0) == std::vector<float>{3, 0, 0, -3});
  REQUIRE(unit_of(summaries, 1, 1) == std::vector<float>{17, -4, 14, -7});
  REQUIRE(unit_of(summaries, 1, 2) == std::vector<float>{19, -8, 18, -9});
}

TEST_CASE("folding the same tokens twice changes nothing, and a cut begins its unit afresh", "[pool]") {
  counted_cache cache(10);
  pools::bounds const pool;
  auto summaries = pool.start(cache.view.shape(), segments::pages{4});
  host_exec exec;
  pool.update(summaries, cache.view, {0}, {0, 1}, 7, exec);
  pool.update(summaries, cache.view, {0}, {0, 1}, 7, exec);
  REQUIRE(summaries.folded[0] == 7);
  summaries.cut({0}, {0, 1}, 6);
  REQUIRE(summaries.folded[0] == 4);
  cache.keys[2 * 6] = 0.5f;
  pool.update(summaries, cache.view, {0}, {0, 1}, 7, exec);
  REQUIRE(unit_of(summaries, 0, 1) == std::vector<float>{5, -4, .5f, -6});
}

// What is behind a head of its own: heads whose tokens differ are folded and cut one by one.
TEST_CASE("a head can be folded and cut without the others", "[pool]") {
  counted_cache const cache(10, 3);
  pools::bounds const pool;
  auto summaries = pool.start(cache.view.shape(), segments::pages{4});
  host_exec exec;
  pool.update(summaries, cache.view, {1}, {1, 1}, 9, exec);
  REQUIRE(summaries.folded == std::vector<std::int64_t>{0, 0, 0, 0, 9, 0});
  REQUIRE(unit_of(summaries, 1, 1, 1) == std::vector<float>{17, -104, 14, -107});
  REQUIRE(unit_of(summaries, 1, 1, 0) == std::vector<float>(4, 0.0f));
  pool.update(summaries, cache.view, {1}, {2, 1}, 10, exec);
  summaries.cut({1}, {0, 2}, 5);
  REQUIRE(summaries.folded == std::vector<std::int64_t>{0, 0, 0, 0, 4, 10});
  summaries.cut({0}, {0, 3}, 0);
  REQUIRE(summaries.folded == std::vector<std::int64_t>{0, 0, 0, 0, 4, 10});
}

// Keys 10..13 and 0..-3: the mean is 11.5 and -1.5, the variance 5/4 in both channels.
TEST_CASE("spread is the mean and one standard deviation to each side, in the place of the bounds", "[pool]") {
  counted_cache const cache(10, 2);
  pools::bounds const pool{pools::bounds::kind::mean_deviation};
  auto summaries = pool.start(cache.view.shape(), segments::pages{4});
  host_exec exec;
  pool.update(summaries, cache.view, {1}, {0, 2}, 3, exec);
  pool.update(summaries, cache.view, {1}, {0, 2}, 9, exec);
  float const deviation = std::sqrt(1.25f);
  std::vector<float> const got = unit_of(summaries, 1, 0, 1);
  std::vector<float> const want{11.5f + deviation, -101.5f + deviation, 11.5f - deviation, -101.5f - deviation};
  for (std::size_t i = 0; i < 4; ++i) REQUIRE(std::abs(got[i] - want[i]) < 2e-5f);
  // A unit of one token spreads nowhere.
  REQUIRE(unit_of(summaries, 1, 2, 0) == std::vector<float>{18, -8, 18, -8});
}

}  // namespace
}  // namespace kvpolicy
