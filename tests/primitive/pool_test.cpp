#include "kvpolicy/primitive/pool.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstring>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "primitive/inputs.hpp"

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

/// Calls pool(first, last, exec) for random cuts that cover [0, tokens) together.
template <class On, class Pool>
void in_cuts(cache_shape const& shape, std::int64_t tokens, random_source& random, Pool pool) {
  On(shape).run([&](auto& exec) {
    for (std::int64_t first = 0; first < tokens;) {
      std::int64_t const last = std::min(tokens, first + random.between(1, tokens));
      pool(first, last, exec);
      first = last;
    }
  });
}

double mean_of(random_rows const& from, std::int64_t h, std::int64_t d, std::int64_t first, std::int64_t last) {
  double sum = 0;
  for (std::int64_t t = first; t < last; ++t) sum += from.at(h, t, d);
  return sum / static_cast<double>(last - first);
}

// Keys are in [-1, 1]: 1e-5 of that range is the contract's agreement.
TEMPLATE_TEST_CASE("pool_mean is each unit's mean, in whatever cuts the tokens come", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  with_rows(1, 80, {300}, [](cache_shape const& shape, random_rows const& keys, random_source& random, int round) {
    std::int64_t const n = keys.tokens();
    std::int64_t const unit = random.between(1, 130);
    std::int64_t const units = (n + unit - 1) / unit;
    std::int64_t const width = shape.kv_heads * shape.head_dim;
    std::int64_t const column = random.between(0, 5);
    std::vector<float> means(static_cast<std::size_t>(units * (width + 7)), 99.0f);
    in_cuts<TestType>(shape, n, random, [&](std::int64_t first, std::int64_t last, auto& exec) {
      pool_mean(keys.get(), {unit, first, last}, table<float>{means.data(), units, width + 7, width + 7}, column, exec);
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
        double const want = mean_of(keys, i / shape.head_dim, i % shape.head_dim, u * unit, std::min(n, (u + 1) * unit));
        worst = std::max(worst, std::abs(got - want));
      }
    }
    INFO("round " << round);
    REQUIRE(worst < 1e-5);
    REQUIRE_FALSE(outside);
  });
}

// Each pair is rotated back by its own angle, whichever channels it has; what is behind the pairs stays. Rows by index are
// turned by the token that they are of.
TEMPLATE_TEST_CASE("pool_mean of keys that are rotated back is the mean of the keys before their embedding", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  with_rows(6, 60, {200}, [](cache_shape const& shape, random_rows const& keys, random_source& random, int round) {
    std::int64_t const n = keys.tokens();
    std::int64_t const unit = random.between(1, 40);
    std::int64_t const units = (n + unit - 1) / unit;
    std::int64_t const width = shape.kv_heads * shape.head_dim;
    std::int64_t const pairs = random.between(0, shape.head_dim / 2);
    bool const halves = random.one_in(2);
    std::vector<float> frequency(static_cast<std::size_t>(pairs + 1));
    for (float& f : frequency) f = static_cast<float>(random.between(1, 1000)) / 1000;
    rotation const rope{frequency.data(), pairs, halves ? rotation::pairing::halves : rotation::pairing::neighbours};
    std::vector<float> angles(static_cast<std::size_t>(2 * pairs * shape.max_tokens + 1));
    write_rope_angles(rope, std::span(angles).first(angles.size() - 1));
    rope_angles const turned{angles.data(), pairs, rope.how};
    std::vector<float> means(static_cast<std::size_t>(units * width));
    in_cuts<TestType>(shape, n, random, [&](std::int64_t first, std::int64_t last, auto& exec) {
      pool_mean(keys.get(), {.unit_size = unit, .first = first, .last = last, .rotated = turned},
                table<float>{means.data(), units, width, width}, 0, exec);
    });
    double worst = 0;
    for (std::int64_t u = 0; u < units; ++u) {
      std::int64_t const behind = std::min(n, (u + 1) * unit);
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        std::vector<double> want(static_cast<std::size_t>(shape.head_dim));
        for (std::int64_t t = u * unit; t < behind; ++t) {
          std::int64_t const token = keys.get().at({h}, {t}).value;
          for (std::int64_t d = 0; d < shape.head_dim; ++d) {
            std::int64_t const pair = halves ? d % std::max<std::int64_t>(pairs, 1) : d / 2;
            double value = keys.at(h, t, d);
            if (d < 2 * pairs) {
              double const angle = static_cast<double>(token) * static_cast<double>(frequency[static_cast<std::size_t>(pair)]);
              bool const is_x = halves ? d < pairs : d % 2 == 0;
              double const x = keys.at(h, t, halves ? pair : 2 * pair);
              double const y = keys.at(h, t, halves ? pair + pairs : 2 * pair + 1);
              value = is_x ? x * std::cos(angle) + y * std::sin(angle) : y * std::cos(angle) - x * std::sin(angle);
            }
            want[static_cast<std::size_t>(d)] += value / static_cast<double>(behind - u * unit);
          }
        }
        for (std::int64_t d = 0; d < shape.head_dim; ++d) {
          double const got = means[static_cast<std::size_t>(u * width + h * shape.head_dim + d)];
          worst = std::max(worst, std::abs(got - want[static_cast<std::size_t>(d)]));
        }
      }
    }
    INFO("round " << round << " pairs " << pairs << " of " << shape.head_dim << " halves " << halves);
    REQUIRE(worst < 2e-5);
  });
}

TEMPLATE_TEST_CASE("pool_bounds is exact, passes NaN over, and takes any cuts", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(2);
  for (int round = 0; round < 140; ++round) {
    cache_shape const shape = random_shape(random, 200);
    content const kind = random.pick(contents);
    random_cache const cache = random_cache_of(shape, random, kind);
    random_rows const keys(cache, random);
    std::int64_t const n = keys.tokens();
    std::int64_t const unit = random.one_in(4) ? 1 : random.between(1, 130);
    std::int64_t const units = (n + unit - 1) / unit;
    stored_bounds bounds(shape.type, shape.kv_heads, units + 2, shape.head_dim, std::byte{0x3c});
    in_cuts<TestType>(shape, n, random, [&](std::int64_t first, std::int64_t last, auto& exec) {
      pool_bounds(keys.get(), {unit, first, last}, bounds, exec);
    });
    std::int64_t wrong = 0;
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (std::int64_t u = 0; u < units; ++u) {
        for (std::int64_t d = 0; d < shape.head_dim; ++d) {
          auto const key = [&](std::int64_t t) { return keys.at(h, t, d); };
          auto const [high, low] = naive::bounds(key, shape.type, u * unit, std::min(n, (u + 1) * unit));
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

// Units need not begin at the first token: those before `origin` belong to none.
TEMPLATE_TEST_CASE("pool_mean counts units from its origin", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  with_rows(4, 40, {150}, [](cache_shape const& shape, random_rows const& keys, random_source& random, int round) {
    std::int64_t const n = keys.tokens();
    std::int64_t const origin = random.between(0, n - 1);
    std::int64_t const unit = random.between(1, 30);
    std::int64_t const units = (n - origin + unit - 1) / unit;
    std::int64_t const width = shape.kv_heads * shape.head_dim;
    std::vector<float> means(static_cast<std::size_t>(units * width));
    TestType on(shape);
    on.run([&](auto& exec) {
      std::int64_t const middle = random.between(origin, n);
      table<float> const to{means.data(), units, width, width};
      pool_mean(keys.get(), {.unit_size = unit, .first = origin, .last = middle, .origin = origin}, to, 0, exec);
      pool_mean(keys.get(), {.unit_size = unit, .first = middle, .last = n, .origin = origin}, to, 0, exec);
    });
    double worst = 0;
    for (std::int64_t u = 0; u < units; ++u) {
      for (std::int64_t i = 0; i < width; ++i) {
        std::int64_t const first = origin + u * unit;
        double const want = mean_of(keys, i / shape.head_dim, i % shape.head_dim, first, std::min(n, first + unit));
        worst = std::max(worst, std::abs(means[static_cast<std::size_t>(u * width + i)] - want));
      }
    }
    INFO("round " << round << " origin " << origin);
    REQUIRE(worst < 1e-5);
  });
}

/// Relative rounding of a type.
double rounding(element_type type) { return type == element_type::f32 ? 0 : type == element_type::f16 ? 0x1p-11 : 0x1p-8; }

// A deviation of keys in [-1, 1] from fp32 sums: within 3e-4 where a variance of nearly nothing is rounded, else within 1e-5.
TEMPLATE_TEST_CASE("pool_mean_deviation is mean and standard deviation, in whatever cuts the tokens come, NaN where a key is",
                   "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(5);
  for (int round = 0; round < 100; ++round) {
    cache_shape const shape = random_shape(random, 200);
    content const kind =
        random.pick(std::array{content::plain, content::negative, content::tied, content::equal, content::nan});
    random_cache const cache = random_cache_of(shape, random, kind);
    random_rows const keys(cache, random);
    std::int64_t const n = keys.tokens();
    std::int64_t const unit = random.one_in(4) ? 1 : random.between(1, 130);
    std::int64_t const units = (n + unit - 1) / unit;
    stored_bounds bounds(shape.type, shape.kv_heads, units + 2, shape.head_dim, std::byte{0x3c});
    std::vector<float> moments(static_cast<std::size_t>(shape.kv_heads * (units + 2) * 2 * shape.head_dim), 99.0f);
    in_cuts<TestType>(shape, n, random, [&](std::int64_t first, std::int64_t last, auto& exec) {
      pool_mean_deviation(keys.get(), {unit, first, last}, moments.data(), bounds, exec);
    });
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (std::int64_t u = 0; u < units; ++u) {
        for (std::int64_t d = 0; d < shape.head_dim; ++d) {
          auto const [high, low] = naive::spread(keys, h, d, u * unit, std::min(n, (u + 1) * unit));
          double const most =
              rounding(shape.type) * std::max(std::abs(high), std::abs(low)) + (high - low < 1e-2 ? 3e-4 : 1e-5);
          float const above = element(bounds, h, u, d);
          float const below = element(bounds, h, u, shape.head_dim + d);
          INFO("round " << round << " content " << static_cast<int>(kind) << " head " << h << " unit " << u << " channel "
                        << d);
          if (std::isnan(high)) {
            REQUIRE(std::isnan(above));
            REQUIRE(std::isnan(below));
          } else {
            REQUIRE(std::abs(above - high) <= most);
            REQUIRE(std::abs(below - low) <= most);
          }
        }
      }
      for (std::int64_t u = units; u < units + 2; ++u) REQUIRE(*bounds.unit(h, u) == std::byte{0x3c});
    }
  }
}

// -60000 and three times 65000: mean 33750, standard deviation 54127.
TEMPLATE_TEST_CASE("a spread beyond what the type holds ends at its largest values", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(6);
  cache_shape const shape{1, 1, 1, 3, 4, element_type::f16};
  random_cache cache(shape, layout::head_major, 4, random);
  for (std::int64_t d = 0; d < 3; ++d) {
    for (std::int64_t t = 0; t < 4; ++t) cache.set_key(0, 0, t, d, t == 0 ? -60000.0f : 65000.0f);
  }
  stored_bounds bounds(shape.type, 1, 1, 3);
  std::vector<float> moments(6);
  TestType on(shape);
  on.run([&](auto& exec) { pool_mean_deviation(cache.keys(0, 4), {4, 0, 4}, moments.data(), bounds, exec); });
  for (std::int64_t d = 0; d < 3; ++d) {
    REQUIRE(element(bounds, 0, 0, d) == 65504.0f);
    REQUIRE(std::abs(element(bounds, 0, 0, 3 + d) + 20377) < 40);
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
  stored_bounds bounds(shape.type, 2, 4, 8, std::byte{0x3c});
  std::vector<float> moments(128, 5.0f);
  for (std::int64_t const at : {7, 8}) {
    on.run([&](auto& exec) {
      pool_bounds(cache.keys(0, 16), {4, at, at}, bounds, exec);
      pool_mean_deviation(cache.keys(0, 16), {4, at, at}, moments.data(), bounds, exec);
    });
    INFO("at " << at);
    REQUIRE(bounds.storage == std::vector<std::byte>(bounds.storage.size(), std::byte{0x3c}));
    REQUIRE(moments == std::vector<float>(128, 5.0f));
  }
}

}  // namespace
}  // namespace kvpolicy_test
