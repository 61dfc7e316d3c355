#include "kvpolicy/primitive/kept_scores.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "conformance/random_cache.hpp"

namespace kvpolicy_test {
namespace {

constexpr cache_shape shape_of_four{1, 2, 1, 2, 4, element_type::f32};

/// Four keys of two channels.
struct four_keys {
  explicit four_keys(std::array<std::array<float, 2>, 4> const& of)
      : random(2801), cache(shape_of_four, layout::head_major, 4, random) {
    for (std::int64_t t = 0; t < 4; ++t) {
      for (std::int64_t i = 0; i < 2; ++i) {
        cache.set_key(0, 0, t, i, of[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)]);
      }
    }
  }
  auto keys() { return own_view{&cache, 4}.keys({0}); }

  random_source random;
  random_cache cache;
};

TEST_CASE("by hand: of three equal keys the first is redundant most, the last not at all") {
  four_keys of({{{1, 0}, {2, 0}, {3, 0}, {0, 1}}});
  std::array<float, 4> got{};
  range_list const all{{0, 4}};
  // A row is a key's cosines to the others; the last one above .5 does not count. So the first key counts for the second and
  // the third, the second for the first, and the third for nobody.
  host::key_redundancy(of.keys(), {&all, 1}, .5f, table<float>{got.data(), 1, 4, 4});
  std::array const want{2 / 4., 1 / 4., 0., 0.};
  for (std::size_t t = 0; t < 4; ++t) REQUIRE(std::abs(static_cast<double>(got[t]) - want[t]) < 1e-6);

  range_list const two{{0, 1}, {2, 3}};
  host::key_redundancy(of.keys(), {&two, 1}, .5f, table<float>{got.data(), 1, 2, 4});
  REQUIRE((got[0] == 0 && got[1] == 0));  // each is the last above .5 in the other's row
}

TEST_CASE("by hand: a query wants a key by its mean, and by the length of the key's pair") {
  four_keys of({{{3, 4}, {0, 0}, {6, 8}, {1, 0}}});
  std::array<float, 4> const mean{1, 2, 0, -1};  // of two query heads
  std::array<float, 2> const spread{.5f, 2};
  std::array<float, 4> got{};
  range_list const list{{0, 1}, {2, 3}};
  host::rotated_scores(of.keys(), {&list, 1}, {{mean.data(), 2, 2, 2}, {spread.data(), 2, 1, 1}},
                       table<float>{got.data(), 2, 2, 2});
  REQUIRE(got == std::array<float, 4>{11 + 2.5f, 22 + 5, -4 + 10, -8 + 20});
}

}  // namespace
}  // namespace kvpolicy_test
