#include "kvpolicy/score/recency.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"

namespace kvpolicy {
namespace {

TEST_CASE("later units score higher, strictly", "[score]") {
  std::array<float, 5> scores{};
  host_exec exec;
  score::recency{}.score(0, table<float>{scores.data(), 1, 5, 5}, exec);
  for (std::size_t i = 1; i < scores.size(); ++i) REQUIRE(scores[i] > scores[i - 1]);
}

}  // namespace
}  // namespace kvpolicy
