#include "kvpolicy/scorers/recency.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"

namespace kvpolicy {
namespace {

TEST_CASE("later units score higher, strictly", "[score]") {
  std::array<float, 5> scores{};
  host_exec exec;
  scorers::recency{}.score(0, table<float>{scores.data(), 1, 5, 5}, exec);
  for (std::size_t i = 1; i < scores.size(); ++i) REQUIRE(scores[i] > scores[i - 1]);
}

TEST_CASE("of the tokens that are still there the later ones score higher, and what is behind them is left alone", "[score]") {
  std::array<float, 6> scores{9, 9, 9, 9, 9, 9};
  std::array const lists{range_list{{0, 2, reason::sink}, {40, 42, reason::scored}, {99, 100, reason::open}}};
  host_exec exec;
  scorers::recency{}.score_kept(0, lists, table<float>{scores.data(), 1, 6, 6}, exec);
  for (std::size_t i = 1; i < 5; ++i) REQUIRE(scores[i] > scores[i - 1]);
  REQUIRE(scores[5] == 9);
}

}  // namespace
}  // namespace kvpolicy
