#include "kvpolicy/selectors/rank_scores.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <vector>

#include "kvpolicy/error.hpp"

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

/// Adds what another rank gave.
struct other_rank {
  std::vector<float> gave;
  std::vector<float> got;

  void sum(std::span<float> values) {
    got.assign(values.begin(), values.end());
    for (std::size_t i = 0; i < gave.size(); ++i) values[i] += gave[i];
  }
};

constexpr segments::hierarchy units{.page = 4, .pages_per_chunk = 2, .chunks_per_grid = 2};

std::vector<cascade_level> levels_of(std::int64_t chunks, std::int64_t pages) {
  return {{.vectors = {nullptr, chunks, 1, 1}, .fan_out = 2}, {.vectors = {nullptr, pages, 1, 1}}};
}

/// Unit u of level l scores 10 l + u.
void score(std::size_t l, std::span<std::int32_t const> which, std::span<float> out) {
  for (std::size_t i = 0; i < which.size(); ++i) out[i] = static_cast<float>(10 * l) + static_cast<float>(which[i]);
}

TEST_CASE("sums have the shape of max_tokens, whatever is there", "[ranks]") {
  std::vector<std::int32_t> all(16);
  std::vector<std::size_t> sizes;
  for (std::int64_t const pages : {0, 1, 5, 16}) {
    selectors::rank_scores scores(units, 64, 2);
    other_rank exec;
    scores.sum(levels_of((pages + 1) / 2, pages), 4 * pages, all, score, exec);
    sizes.push_back(exec.got.size());
    for (std::int64_t u = 0; u < pages; ++u) REQUIRE(scores.of(1)[u] == static_cast<float>(10 + u));
    for (std::int64_t u = 0; u < (pages + 1) / 2; ++u) REQUIRE(scores.of(0)[u] == static_cast<float>(u));
    for (std::int64_t u = pages; u < 16; ++u) REQUIRE(scores.of(1)[u] == 0);
  }
  REQUIRE(sizes == std::vector<std::size_t>(4, 8 + 16 + 62));
}

TEST_CASE("ranks in step add up, and ranks that are not are found out at any distance", "[ranks]") {
  std::vector<std::int32_t> all(16);
  auto const given_at = [&](std::int64_t tokens) {
    selectors::rank_scores scores(units, 64, 2);
    other_rank exec;
    scores.sum(levels_of(2, 3), tokens, all, score, exec);
    return exec.got;
  };
  selectors::rank_scores scores(units, 64, 2);
  other_rank same{given_at(12), {}};
  scores.sum(levels_of(2, 3), 12, all, score, same);
  REQUIRE(scores.of(1)[2] == 24);
  for (std::int64_t const other : {0, 11, 13, 12 + 64, 12 + 4096, 2147483647}) {
    other_rank late{given_at(other), {}};
    REQUIRE_THROWS_WITH(scores.sum(levels_of(2, 3), 12, all, score, late), ContainsSubstring("chooses among 12 tokens"));
  }
}

}  // namespace
}  // namespace kvpolicy
