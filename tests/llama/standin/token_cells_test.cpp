// The order of a sequence's tokens in a cache, from the cells that it sees and when they were written.
#include "token_cells.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "conformance/rounds.hpp"

namespace kvpolicy::ggml {
namespace {

using cell_list = std::vector<std::int64_t>;

std::vector<cell_range> ranges_of(cell_list cells) {
  std::ranges::sort(cells);
  std::vector<cell_range> all;
  for (std::int64_t const cell : cells) {
    if (!all.empty() && all.back().end == cell) ++all.back().end;
    else all.push_back({cell, cell + 1});
  }
  return all;
}

cell_list cells_of(token_cells const& of) {
  cell_list all;
  for (cell_run const& run : of.runs())
    for (std::int64_t i = 0; i < run.count; ++i) all.push_back(run.cell + i);
  return all;
}

TEST_CASE("tokens are found in the order in which they were written, wherever they are", "[standin]") {
  for (int round = 0; round < kvpolicy_test::rounds_of(200); ++round) {
    std::mt19937_64 random(static_cast<std::uint64_t>(round));
    auto const below = [&](std::uint64_t limit) { return static_cast<std::int64_t>(random() % limit); };
    constexpr std::int64_t cells = 48;
    write_order order(cells);
    std::vector<cell_list> truth(3);  // by sequence
    std::vector<token_cells> known(3);
    for (int call = 0; call < 60; ++call) {
      auto const s = static_cast<std::size_t>(below(3));
      if (below(5) == 0) {
        auto const tokens = static_cast<std::size_t>(below(truth[s].size() + 1));
        truth[s].resize(tokens);
        known[s].cut(static_cast<std::int64_t>(tokens));
      }
      for (std::int64_t left = below(6), cell = below(cells); left > 0; cell = (cell + 1) % cells) {
        bool const taken =
            std::ranges::any_of(truth, [&](cell_list const& of) { return std::ranges::find(of, cell) != of.end(); });
        if (taken && std::ranges::count_if(truth, [](cell_list const& of) { return of.size() > 14; }) > 0) break;
        if (taken) continue;
        truth[s].push_back(cell);
        known[s].append(cell, order.write(cell));
        --left;
      }
      for (std::size_t i = 0; i < truth.size(); ++i) {
        REQUIRE(cells_of(known[i]) == truth[i]);
        std::vector<cell_range> const seen = ranges_of(truth[i]);
        token_cells const found(seen, order);
        REQUIRE(found.are_ordered());
        REQUIRE(cells_of(found) == truth[i]);
        for (std::size_t tokens = 0; tokens <= truth[i].size(); ++tokens)
          REQUIRE(known[i].begins_with(ranges_of({truth[i].begin(), truth[i].begin() + static_cast<std::ptrdiff_t>(tokens)}),
                                       order));
        if (truth[i].size() > 1 && truth[i][0] != truth[i][1])
          REQUIRE_FALSE(known[i].begins_with(ranges_of({truth[i].begin() + 1, truth[i].end()}), order));
      }
    }
  }
}

TEST_CASE("what others wrote is not a sequence's any more, unless it is known again", "[standin]") {
  write_order order(16);
  token_cells tokens;
  for (std::int64_t const cell : {4, 5, 6, 2}) tokens.append(cell, order.write(cell));
  std::vector<cell_range> const seen{{2, 3}, {4, 7}};
  REQUIRE(tokens.begins_with(seen, order));
  std::uint64_t const number = order.of(5);
  order.forget({5, 6});
  REQUIRE_FALSE(tokens.begins_with(seen, order));
  REQUIRE(tokens.begins_with(std::vector<cell_range>{{4, 5}}, order));
  order.restore(5, number);
  REQUIRE(tokens.begins_with(seen, order));
}

TEST_CASE("the order of cells that others wrote is not known, and what they wrote next is another text") {
  write_order order(16);
  order.forget({3, 8});
  std::vector<cell_range> const seen{{3, 9}};
  order.write(8);
  token_cells const tokens(seen, order);
  REQUIRE_FALSE(tokens.are_ordered());
  REQUIRE(tokens.begins_with(seen, order));
  order.forget({3, 8});
  REQUIRE_FALSE(tokens.begins_with(seen, order));
}

}  // namespace
}  // namespace kvpolicy::ggml
