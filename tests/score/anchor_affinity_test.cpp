#include "kvpolicy/score/anchor_affinity.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "kvpolicy/exec/host.hpp"

namespace kvpolicy {
namespace {

// Pages of one token, so a page's vector is its key: 1, 2, 4, 8, 16. The anchor of W = 3 is (4 + 8 + 16) / 3.
TEST_CASE("the anchor is the mean of the last pages' vectors", "[score]") {
  std::array<float, 5> const keys{1, 2, 4, 8, 16};
  auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
  byte_strides const strides{.layer = 20, .head = 4, .token = 4, .dim = 4};
  strided_view<> const view{{1, 1, 1, 1, 5, element_type::f32}, 5, base, base, strides, strides};
  host_exec exec;
  pool::hierarchical_mean const pool;
  auto summaries = pool.start(view.shape(), {.page = 1, .pages_per_chunk = 2, .chunks_per_grid = 2});
  pool.update(summaries, view, {0}, {0, 1}, 5, exec);
  REQUIRE(std::abs(score::anchor_affinity{.recent_pages = 3}.anchor(summaries, exec)[0] - 28.0f / 3) < 1e-5f);
  REQUIRE(score::anchor_affinity{.recent_pages = 1}.anchor(summaries, exec)[0] == 16);
  REQUIRE(std::abs(score::anchor_affinity{.recent_pages = 9}.anchor(summaries, exec)[0] - 31.0f / 5) <
          1e-5f);  // of those that exist
}

}  // namespace
}  // namespace kvpolicy
