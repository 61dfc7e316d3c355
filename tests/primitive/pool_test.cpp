#include "kvpolicy/primitive/pool.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstring>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"

namespace kvpolicy_test {
namespace {

float element(bounds_table const& table, std::int64_t head, std::int64_t unit, std::int64_t i) {
  std::byte const* const at = table.unit(head, unit) + i * size_of(table.type);
  float value = 0;
  std::uint16_t half = 0;
  if (table.type == element_type::f32) {
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::memcpy(&half, at, sizeof half);
  return table.type == element_type::f16 ? half_to_float(half) : bfloat_to_float(half);
}

/// Ends of the calls that cover [0, tokens) together.
std::vector<std::int64_t> random_cuts(std::int64_t tokens, random_source& random) {
  std::vector<std::int64_t> cuts;
  for (std::int64_t at = 0; at < tokens;) cuts.push_back(at = std::min(tokens, at + random.between(1, tokens)));
  return cuts;
}

// Keys are in [-1, 1]: 1e-5 of that range is the contract's agreement.
TEMPLATE_TEST_CASE("pool_mean is each unit's mean, in whatever cuts the tokens come", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(1);
  for (int round = 0; round < 80; ++round) {
    cache_shape const shape = random_shape(random, 300);
    random_cache const cache = random_cache_of(shape, random);
    std::int64_t const n = shape.max_tokens;
    std::int64_t const unit = random.between(1, 130);
    std::int64_t const units = (n + unit - 1) / unit;
    std::int64_t const width = shape.kv_heads * shape.head_dim;
    std::int64_t const column = random.between(0, 5);
    std::vector<float> means(static_cast<std::size_t>(units * (width + 7)), 99.0f);
    TestType on(shape);
    on.run([&](auto& exec) {
      std::int64_t first = 0;
      for (std::int64_t const last : random_cuts(n, random)) {
        pool_mean(cache.keys(0, n), {unit, first, last}, table<float>{means.data(), units, width + 7, width + 7}, column, exec);
        first = last;
      }
    });
    double worst = 0;
    bool outside = false;
    for (std::int64_t u = 0; u < units; ++u) {
      for (std::int64_t c = 0; c < width + 7; ++c) {
        double const got = means[static_cast<std::size_t>(u * (width + 7) + c)];
        std::int64_t const i = c - column;
        if (i < 0 || i >= width) {
          outside |= got != 99.0;
          continue;
        }
        double const want =
            naive::mean(cache, 0, i / shape.head_dim, i % shape.head_dim, u * unit, std::min(n, (u + 1) * unit));
        worst = std::max(worst, std::abs(got - want));
      }
    }
    INFO("round " << round);
    REQUIRE(worst < 1e-5);
    REQUIRE_FALSE(outside);
  }
}

TEMPLATE_TEST_CASE("pool_bounds is exact, passes NaN over, and takes any cuts", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(2);
  for (int round = 0; round < 140; ++round) {
    cache_shape const shape = random_shape(random, 200);
    content const kind = random.pick(contents);
    random_cache const cache = random_cache_of(shape, random, kind);
    std::int64_t const n = shape.max_tokens;
    std::int64_t const unit = random.one_in(4) ? 1 : random.between(1, 130);
    std::int64_t const units = (n + unit - 1) / unit;
    bounds_table bounds{nullptr, shape.type, shape.kv_heads, units + 2, shape.head_dim};
    std::vector<std::byte> storage(static_cast<std::size_t>(bounds.bytes()), std::byte{0x3c});
    bounds.data = storage.data();
    TestType on(shape);
    on.run([&](auto& exec) {
      std::int64_t first = 0;
      for (std::int64_t const last : random_cuts(n, random)) {
        pool_bounds(cache.keys(0, n), {unit, first, last}, bounds, exec);
        first = last;
      }
    });
    std::int64_t wrong = 0;
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (std::int64_t u = 0; u < units; ++u) {
        for (std::int64_t d = 0; d < shape.head_dim; ++d) {
          auto const [high, low] = naive::bounds(cache, 0, h, d, u * unit, std::min(n, (u + 1) * unit));
          if (element(bounds, h, u, d) != high || element(bounds, h, u, shape.head_dim + d) != low) ++wrong;
        }
      }
    }
    INFO("round " << round << " content " << static_cast<int>(kind));
    REQUIRE(wrong == 0);
    for (std::int64_t u = units; u < units + 2; ++u) {
      REQUIRE(*bounds.unit(shape.kv_heads - 1, u) == std::byte{0x3c});  // units that no token reached stay as they were
    }
  }
}

TEMPLATE_TEST_CASE("pooling nothing writes nothing", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(3);
  cache_shape const shape{1, 2, 2, 8, 16, element_type::f32};
  random_cache const cache = random_cache_of(shape, random);
  std::vector<float> means(64, 5.0f);
  TestType on(shape);
  on.run([&](auto& exec) {
    pool_mean(cache.keys(0, 16), {4, 7, 7}, table<float>{means.data(), 4, 16, 16}, 0, exec);
    pool_mean(cache.keys(0, 16), {4, 8, 8}, table<float>{means.data(), 4, 16, 16}, 0, exec);
  });
  REQUIRE(means == std::vector<float>(64, 5.0f));
}

}  // namespace
}  // namespace kvpolicy_test
