// What every communicator must do while all ranks live; each rank runs it.
#pragma once

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvpolicy/communicator.hpp"

namespace kvpolicy_test {

/// Collective. Throws what is wrong: ranks are threads or processes, in which test macros do not count.
template <kvpolicy::communicator Communicator>
void check_communicator(Communicator& all) {
  auto const require = [](bool holds, std::string const& what) {
    if (!holds) throw std::logic_error(what);
  };
  int const rank = all.rank();
  int const size = all.size();
  require(size >= 1 && rank >= 0 && rank < size, "rank " + std::to_string(rank) + " of " + std::to_string(size));
  float const ranks_sum = static_cast<float>(size * (size - 1) / 2);
  for (std::size_t const count : {1u, 2u, 7u, 64u, 1000u, 3u, 70000u, 1u}) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(rank) + static_cast<float>(i);
    all.sum(values);
    for (std::size_t i = 0; i < count; ++i) {
      float const want = ranks_sum + static_cast<float>(size) * static_cast<float>(i);
      require(values[i] == want, "a sum of " + std::to_string(count) + " numbers has " + std::to_string(values[i]) + " at " +
                                     std::to_string(i) + ", not " + std::to_string(want));
    }
  }
  // Each rank in turn has what is not finite.
  for (int odd = 0; odd < size; ++odd) {
    float const infinity = std::numeric_limits<float>::infinity();
    std::vector<float> values{1, rank == odd ? std::nanf("") : 1, rank == odd ? infinity : 1, rank == odd ? -infinity : 1, 2};
    all.sum(values);
    require(values[0] == static_cast<float>(size) && std::isnan(values[1]) && values[2] == infinity && values[3] == -infinity &&
                values[4] == static_cast<float>(2 * size),
            "a number that is not finite is lost, or spreads");
  }
  // Sums that depend on their order are the same on all ranks: so is the sum of a part that only one of them gives.
  std::vector<float> values(997);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<float>(i + 1) * static_cast<float>(rank + 1)) * (i % 2 == 0 ? 1e-3f : 1e4f);
  all.sum(values);
  for (int teller = 0; teller < size; ++teller) {
    std::vector<float> told(values.size(), 0.0f);
    if (rank == teller) told = values;
    all.sum(told);
    require(told == values, "ranks " + std::to_string(teller) + " and " + std::to_string(rank) + " have different sums");
  }
}

}  // namespace kvpolicy_test
