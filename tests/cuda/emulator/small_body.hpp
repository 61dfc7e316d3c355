// Little bodies for tests of the model: what they have in common, and what is required of them for many seeds.
#pragma once

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <numeric>
#include <string>

#include "cuda/emulator/gpu_emulator.hpp"

namespace kvpolicy_test {

namespace gpu = kvpolicy::gpu;
using Catch::Matchers::ContainsSubstring;

inline constexpr std::uint64_t seeds = 20;

/// What the small bodies below have in common.
template <unsigned Threads>
struct small_body {
  static constexpr unsigned threads = Threads;
  static constexpr char const* name = "small";
  struct arguments {
    gpu::buffer<float> out;
    gpu::buffer<float const> in;
    gpu::buffer<std::int32_t> counts;
    std::int64_t n = 0;
  };
  template <class B>
  struct shared {
    typename B::template array<float, Threads> values;
    typename B::template array<std::int32_t, 4> counts;
    typename B::template scan_storage<std::int32_t> scan;
    typename B::template reduce_storage<float> reduce;
  };
};

/// Memory that the small bodies are given.
struct fixture {
  alignas(16) std::array<float, 256> out{};
  alignas(16) std::array<float, 256> in{};
  std::array<std::int32_t, 256> counts{};

  fixture() { std::iota(in.begin(), in.end(), 1.0f); }
  template <class Body>
  typename Body::arguments arguments(std::int64_t n) {
    return {{out.data(), 256}, {in.data(), 256}, {counts.data(), 256}, n};
  }
};

template <class Body>
std::string error_of(std::uint64_t seed, gpu::grid_size grid = {}, std::int64_t n = 0) {
  fixture memory;
  gpu_emulator device(seed);
  try {
    device.launch<Body>(grid, memory.arguments<Body>(n));
  } catch (emulator_error const& error) {
    return error.what();
  }
  return "none";
}

template <class Body>
void require_error(std::string const& kind, gpu::grid_size grid = {}, std::int64_t n = 0) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    std::string const error = error_of<Body>(seed, grid, n);
    REQUIRE_THAT(error, ContainsSubstring(": " + kind + ": ") && ContainsSubstring("small, block ("));
  }
}

/// Runs a body for every seed; check(memory) looks at what it wrote.
template <class Body, class Check>
void require_right(Check check, gpu::grid_size grid = {}, std::int64_t n = 0) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    fixture memory;
    gpu_emulator device(seed);
    device.launch<Body>(grid, memory.arguments<Body>(n));
    check(memory);
  }
}

}  // namespace kvpolicy_test
