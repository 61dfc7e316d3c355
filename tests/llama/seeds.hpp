// Seeds of random calls: KVPOLICY_SEEDS is how many, in place of a test's own, and KVPOLICY_FIRST_SEED the first.
#pragma once

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "conformance/rounds.hpp"

namespace kvpolicy::llama::testing {

/// Fails for each of `whole` seeds (in a full run) of which `run(seed)` says what went wrong, and prints what repeats it.
template <class Run>
void check_seeds(int whole, Run run) {
  auto const number = [](char const* name, std::uint64_t otherwise) {
    char const* const given = std::getenv(name);
    return given != nullptr ? std::strtoull(given, nullptr, 10) : otherwise;
  };
  std::uint64_t const first = number("KVPOLICY_FIRST_SEED", 1);
  std::uint64_t const count = number("KVPOLICY_SEEDS", static_cast<std::uint64_t>(kvpolicy_test::rounds_of(whole)));
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    std::string const failed = run(seed);
    if (!failed.empty())
      FAIL_CHECK("this seed alone: KVPOLICY_FIRST_SEED=" << seed << " KVPOLICY_SEEDS=1 before the command\n" << failed);
  }
}

}  // namespace kvpolicy::llama::testing
