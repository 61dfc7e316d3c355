#include "kvpolicy/pool/bounds.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <vector>

#include "kvpolicy/exec/host.hpp"

namespace kvpolicy {
namespace {

/// Two layers, one head, two channels, of floats: key t of layer l is (10 l + t, -t).
struct counted_cache {
  std::vector<float> keys;
  strided_view<> view;

  explicit counted_cache(std::int64_t tokens) : keys(static_cast<std::size_t>(4 * tokens)) {
    for (std::int64_t l = 0; l < 2; ++l) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        keys[static_cast<std::size_t>(2 * (l * tokens + t))] = static_cast<float>(10 * l + t);
        keys[static_cast<std::size_t>(2 * (l * tokens + t) + 1)] = static_cast<float>(-t);
      }
    }
    auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
    byte_strides const strides{.layer = 8 * tokens, .head = 8, .token = 8, .dim = 4};
    view = {{2, 1, 1, 2, tokens, element_type::f32}, tokens, base, base, strides, strides};
  }
};

std::vector<float> unit_of(pool::bounds::summaries& s, std::int64_t layer, std::int64_t unit) {
  std::vector<float> values(4);
  std::memcpy(values.data(), s.of({layer}).unit(0, unit), 16);
  return values;
}

TEST_CASE("each layer has bounds of its own: maxima, then minima", "[pool]") {
  counted_cache const cache(10);
  pool::bounds const pool;
  auto summaries = pool.start(cache.view.shape(), segment::pages{4});
  host_exec exec;
  pool.update(summaries, cache.view, {0}, 10, exec);
  pool.update(summaries, cache.view, {1}, 10, exec);
  REQUIRE(unit_of(summaries, 0, 0) == std::vector<float>{3, 0, 0, -3});
  REQUIRE(unit_of(summaries, 1, 1) == std::vector<float>{17, -4, 14, -7});
  REQUIRE(unit_of(summaries, 1, 2) == std::vector<float>{19, -8, 18, -9});
}

TEST_CASE("folding the same tokens twice changes nothing, and a cut begins its unit afresh", "[pool]") {
  counted_cache cache(10);
  pool::bounds const pool;
  auto summaries = pool.start(cache.view.shape(), segment::pages{4});
  host_exec exec;
  pool.update(summaries, cache.view, {0}, 7, exec);
  pool.update(summaries, cache.view, {0}, 7, exec);
  REQUIRE(summaries.folded[0] == 7);
  summaries.truncate(6);
  REQUIRE(summaries.folded[0] == 4);
  cache.keys[2 * 6] = 0.5f;
  pool.update(summaries, cache.view, {0}, 7, exec);
  REQUIRE(unit_of(summaries, 0, 1) == std::vector<float>{5, -4, .5f, -6});
}

}  // namespace
}  // namespace kvpolicy
