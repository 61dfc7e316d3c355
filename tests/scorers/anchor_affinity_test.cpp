#include "kvpolicy/scorers/anchor_affinity.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "kvpolicy/exec/host.hpp"

namespace kvpolicy {
namespace {

/// What a pool has of keys `[tokens, dim]` in pages of one token, so that a page's vector is its key.
pools::hierarchical_mean::summaries pooled(std::vector<float> const& keys, std::int64_t dim, host_exec& exec) {
  std::int64_t const tokens = std::ssize(keys) / dim;
  auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
  byte_strides const strides{.layer = 4 * tokens * dim, .head = 4 * dim, .token = 4 * dim, .dim = 4};
  strided_view<> const view{{1, 1, 1, dim, tokens, element_type::f32}, tokens, base, base, strides, strides};
  pools::hierarchical_mean const pool;
  auto made = pool.start(view.shape(), {.page = 1, .pages_per_chunk = 2, .chunks_per_grid = 2});
  pool.update(made, view, {0}, {0, 1}, tokens, exec);
  return made;
}

// Keys 1, 2, 4, 8, 16. The anchor of W = 3 is (4 + 8 + 16) / 3.
TEST_CASE("the anchor is the mean of the last pages' vectors", "[score]") {
  host_exec exec;
  auto summaries = pooled({1, 2, 4, 8, 16}, 1, exec);
  REQUIRE(std::abs(scorers::anchor_affinity{.recent_pages = 3}.anchor(summaries, exec)[0] - 28.0f / 3) < 1e-5f);
  REQUIRE(scorers::anchor_affinity{.recent_pages = 1}.anchor(summaries, exec)[0] == 16);
  REQUIRE(std::abs(scorers::anchor_affinity{.recent_pages = 9}.anchor(summaries, exec)[0] - 31.0f / 5) <
          1e-5f);  // of those that exist
}

// Two channels of four pages: 1 2 3 6 (mean 3, variance 3.5) and 5 5 5 5. The anchor is the last page.
TEST_CASE("a standardised anchor counts channels by their difference from the mean page, in units of their variance",
          "[score]") {
  host_exec exec;
  auto summaries = pooled({1, 5, 2, 5, 3, 5, 6, 5}, 2, exec);
  auto const anchor = scorers::anchor_affinity{.recent_pages = 1, .standardised = true}.anchor(summaries, exec);
  REQUIRE(std::abs(anchor[0] - 3 / 3.5f) < 1e-5f);
  REQUIRE(anchor[1] == 0);
}

}  // namespace
}  // namespace kvpolicy
