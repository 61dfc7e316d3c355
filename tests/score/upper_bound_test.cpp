#include "kvpolicy/score/upper_bound.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pool/bounds.hpp"

namespace kvpolicy {
namespace {

// One KV head with two query heads, two channels, pages of 2 tokens: keys (1, -2), (3, 0) | (-1, 5), (2, 4).
// Page 0 has maxima (3, 0) and minima (1, -2), page 1 maxima (2, 5) and minima (-1, 4).
// q = (1, -1): page 0 gives max(1, 3) + max(2, 0) = 5, page 1 gives 2 - 4 = -2.
// q = (-2, 0): page 0 gives max(-2, -6) + 0 = -2, page 1 gives max(2, -4) + 0 = 2. Means over the group: 1.5 and 0.
TEST_CASE("a page's upper bound is the mean over the group of the best products by channel", "[score]") {
  std::array<float, 8> const keys{1, -2, 3, 0, -1, 5, 2, 4};
  auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
  byte_strides const strides{.layer = 32, .head = 8, .token = 8, .dim = 4};
  strided_view<> const view{{1, 2, 1, 2, 4, element_type::f32}, 4, base, base, strides, strides};
  host_exec exec;
  pool::bounds const pool;
  auto summaries = pool.start(view.shape(), segment::pages{2});
  pool.update(summaries, view, {0}, 4, exec);
  std::array<float, 4> const queries{1, -1, -2, 0};
  score_input<strided_view<>, pool::bounds::summaries> const input{view, {0}, 4, summaries, {queries.data(), 2, 2, 1}, {}};
  std::array<float, 2> scores{};
  score::upper_bound{}.score(input, table<float>{scores.data(), 1, 2, 2}, exec);
  REQUIRE(scores[0] == 1.5f);
  REQUIRE(scores[1] == 0.0f);
}

}  // namespace
}  // namespace kvpolicy
