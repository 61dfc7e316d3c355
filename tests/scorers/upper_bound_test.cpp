#include "kvpolicy/scorers/upper_bound.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/bounds.hpp"

namespace kvpolicy {
namespace {

/// Scores of two pages of one KV head with two query heads.
std::array<float, 2> scores_of(group_merge merged) {
  std::array<float, 8> const keys{1, -2, 3, 0, -1, 5, 2, 4};
  auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
  byte_strides const strides{.layer = 32, .head = 8, .token = 8, .dim = 4};
  strided_view<> const view{{1, 2, 1, 2, 4, element_type::f32}, 4, base, base, strides, strides};
  host_exec exec;
  pools::bounds const pool;
  scorers::upper_bound const score{merged};
  auto summaries = pool.start(view.shape(), segments::pages{2});
  auto memory = score.start(view.shape());
  pool.update(summaries, view, {0}, {0, 1}, 4, exec);
  std::array<float, 4> const queries{1, -1, -2, 0};
  score_input<strided_view<>, decltype(summaries), decltype(memory)> const input{
      view, {0}, {0, 1}, 4, 0, summaries, memory, {queries.data(), 2, 2, 1}};
  std::array<float, 2> scores{};
  score.score(input, table<float>{scores.data(), 1, 2, 2}, exec);
  return scores;
}

// One KV head with two query heads, two channels, pages of 2 tokens: keys (1, -2), (3, 0) | (-1, 5), (2, 4).
// Page 0 has maxima (3, 0) and minima (1, -2), page 1 maxima (2, 5) and minima (-1, 4).
// q = (1, -1): page 0 gives max(1, 3) + max(2, 0) = 5, page 1 gives 2 - 4 = -2.
// q = (-2, 0): page 0 gives max(-2, -6) + 0 = -2, page 1 gives max(2, -4) + 0 = 2. Means over the group: 1.5 and 0.
TEST_CASE("a page's upper bound is the mean over the group of the best products by channel", "[score]") {
  REQUIRE(scores_of(group_merge::mean) == std::array{1.5f, 0.0f});
}

TEST_CASE("merged by the maximum, the best query head of a group decides", "[score]") {
  REQUIRE(scores_of(group_merge::maximum) == std::array{5.0f, 2.0f});
}

// Two KV heads with groups of two: asked for head 1 alone, the queries handed over are its own.
TEST_CASE("of a few heads only theirs are scored, by either merging", "[score]") {
  std::array<float, 4> const keys{1, 2, -3, 4};  // [head, token], one channel
  auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
  byte_strides const strides{.layer = 16, .head = 8, .token = 4, .dim = 4};
  strided_view<> const view{{1, 4, 2, 1, 2, element_type::f32}, 2, base, base, strides, strides};
  host_exec exec;
  pools::bounds const pool;
  auto summaries = pool.start(view.shape(), segments::pages{1});
  pool.update(summaries, view, {0}, {0, 2}, 2, exec);
  std::array<float, 2> const queries{10, 100};
  for (group_merge const merged : {group_merge::mean, group_merge::maximum}) {
    scorers::upper_bound const score{merged};
    auto memory = score.start(view.shape());
    score_input<strided_view<>, decltype(summaries), decltype(memory)> const input{
        view, {0}, {1, 1}, 2, 0, summaries, memory, {queries.data(), 2, 1, 1}};
    std::array<float, 4> scores{7, 7, 7, 7};
    score.score(input, table<float>{scores.data(), 1, 2, 2}, exec);
    if (merged == group_merge::mean) REQUIRE(scores == std::array{-165.0f, 220.0f, 7.0f, 7.0f});
    else REQUIRE(scores == std::array{-30.0f, 400.0f, 7.0f, 7.0f});
  }
}

}  // namespace
}  // namespace kvpolicy
