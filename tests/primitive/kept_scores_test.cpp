#include "kvpolicy/primitive/kept_scores.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"

namespace kvpolicy_test {
namespace {

std::vector<std::int64_t> some_tokens(std::int64_t tokens, random_source& random) {
  std::vector<std::int64_t> made;
  std::int64_t const every = random.between(1, 3);
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (random.between(1, every) == 1) made.push_back(t);
  }
  if (random.one_in(10)) made.clear();
  return made;
}
range_list listed(std::vector<std::int64_t> const& tokens) {
  range_list made;
  for (std::int64_t const t : tokens) append(made, t, t + 1, reason::scored);
  return made;
}
double dot_of(random_rows const& keys, std::int64_t h, std::int64_t a, std::int64_t b, std::int64_t dims) {
  double sum = 0;
  for (std::int64_t d = 0; d < dims; ++d) sum += static_cast<double>(keys.at(h, a, d)) * static_cast<double>(keys.at(h, b, d));
  return sum;
}

TEMPLATE_TEST_CASE("key_redundancy is the mean of cosines, but for those whose last like one it is", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(171);
  int compared = 0;
  for (int round = 0; round < 90; ++round) {
    cache_shape const shape = random_shape(random, round % 9 == 0 ? 300 : 60);
    random_cache const cache =
        random_cache_of(shape, random, random.pick(std::array{content::plain, content::tied, content::equal}));
    random_rows const keys(cache, random);
    float const alike = random.pick(std::array{.5f, .9f, 0.f, 1.5f});
    std::vector<std::vector<std::int64_t>> tokens;
    std::vector<range_list> lists;
    while (std::ssize(lists) < (random.one_in(2) ? 1 : shape.kv_heads)) {
      tokens.push_back(some_tokens(keys.tokens(), random));
      lists.push_back(listed(tokens.back()));
    }
    std::int64_t most = 0;
    for (range_list const& list : lists) most = std::max(most, token_count(list));
    std::vector<float> out(static_cast<std::size_t>(shape.kv_heads * (most + 1)), 7.0f);
    if (lists.size() != 1 && std::ssize(lists) != shape.kv_heads) continue;
    TestType on(shape);
    on.run([&](auto& exec) {
      key_redundancy(keys.get(), std::span<range_list const>(lists), alike,
                     table<float>{out.data(), shape.kv_heads, most, most + 1}, exec);
    });
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      auto const& there = tokens[tokens.size() == 1 ? 0 : static_cast<std::size_t>(h)];
      std::vector<double> want(there.size());
      bool near = false;  // to `alike`: either side may be right
      for (std::size_t j = 0; j < there.size(); ++j) {
        std::vector<double> cosines(there.size());
        std::size_t last = there.size();
        for (std::size_t i = 0; i < there.size(); ++i) {
          double const norms = std::sqrt(dot_of(keys, h, there[j], there[j], shape.head_dim)) *
                               std::sqrt(dot_of(keys, h, there[i], there[i], shape.head_dim));
          if (i != j && norms > 0) cosines[i] = dot_of(keys, h, there[j], there[i], shape.head_dim) / norms;
          near = near || std::abs(cosines[i] - static_cast<double>(alike)) < 1e-5;
          if (cosines[i] > static_cast<double>(alike)) last = i;
        }
        if (last < there.size()) cosines[last] = 0;
        for (std::size_t i = 0; i < there.size(); ++i) want[i] += cosines[i] / static_cast<double>(there.size());
      }
      for (std::size_t i = 0; i < want.size() && !near; ++i, ++compared) {
        INFO("round " << round << " head " << h << " place " << i << " of " << want.size() << " alike " << alike);
        REQUIRE(std::abs(static_cast<double>(out[static_cast<std::size_t>(h * (most + 1)) + i]) - want[i]) < 1e-5);
      }
      for (std::int64_t i = std::ssize(want); i <= most; ++i)
        REQUIRE(out[static_cast<std::size_t>(h * (most + 1) + i)] == 7.0f);
    }
  }
  REQUIRE(compared > 1000);
}

// Keys a b a b of two directions, and c between: each of the pairs is like the other one of its kind. With alike .9:
// a1 zeroes its last like one, a2; a2 zeroes a1; and so for b. So only what c has in common with them is left.
TEMPLATE_TEST_CASE("key_redundancy, worked by hand", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(172);
  cache_shape const shape{1, 1, 1, 2, 5, element_type::f32};
  random_cache cache(shape, layout::head_major, 4, random);
  float const keys[5][2] = {{1, 0}, {0, 2}, {3, 0}, {0, 1}, {1, 1}};
  for (std::int64_t t = 0; t < 5; ++t) {
    for (std::int64_t d = 0; d < 2; ++d) cache.set_key(0, 0, t, d, keys[t][d]);
  }
  std::array const lists{range_list{{0, 5, reason::open}}};
  std::vector<float> out(5);
  TestType on(shape);
  on.run([&](auto& exec) {
    key_redundancy(cache.keys(0, 5), std::span<range_list const>(lists), .9f, table<float>{out.data(), 1, 5, 5}, exec);
  });
  float const half = std::sqrt(.5f);
  for (std::size_t i = 0; i < 4; ++i) REQUIRE(std::abs(out[i] - half / 5) < 1e-6f);
  REQUIRE(std::abs(out[4] - 4 * half / 5) < 1e-6f);
}

TEMPLATE_TEST_CASE("rotated_scores are products with the mean query, and the lengths of pairs as often as the spread says",
                   "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  with_rows(173, 90, {90, 600, 9}, [](cache_shape const& shape, random_rows const& keys, random_source& random, int round) {
    std::int64_t const pairs = random.between(0, shape.head_dim / 2);
    auto const pairing = random.one_in(2) ? rotation::pairing::halves : rotation::pairing::neighbours;
    std::vector<float> const mean = random.reals(shape.q_heads * shape.head_dim);
    std::vector<float> const spread = random.reals(shape.q_heads * std::max<std::int64_t>(1, pairs));
    std::vector<std::int64_t> const there = some_tokens(keys.tokens(), random);
    std::array const lists{listed(there)};
    std::int64_t const stride = std::ssize(there) + 1;
    std::vector<float> out(static_cast<std::size_t>(shape.q_heads * stride), 7.0f);
    TestType on(shape);
    on.run([&](auto& exec) {
      rotated_scores(keys.get(), std::span<range_list const>(lists),
                     {.mean = {mean.data(), shape.q_heads, shape.head_dim, shape.head_dim},
                      .spread = {spread.data(), shape.q_heads, pairs, std::max<std::int64_t>(1, pairs)},
                      .pairing = pairing},
                     table<float>{out.data(), shape.q_heads, stride - 1, stride}, exec);
    });
    for (std::int64_t q = 0; q < shape.q_heads; ++q) {
      std::int64_t const h = q / shape.group();
      for (std::int64_t i = 0; i < stride - 1; ++i) {
        auto const key = [&](std::int64_t d) { return static_cast<double>(keys.at(h, there[static_cast<std::size_t>(i)], d)); };
        double want = 0;
        double size = 0;
        for (std::int64_t d = 0; d < shape.head_dim; ++d) {
          double const one = static_cast<double>(mean[static_cast<std::size_t>(q * shape.head_dim + d)]) * key(d);
          want += one;
          size += std::abs(one);
        }
        for (std::int64_t f = 0; f < pairs; ++f) {
          bool const halves = pairing == rotation::pairing::halves;
          double const one = static_cast<double>(spread[static_cast<std::size_t>(q * pairs + f)]) *
                             std::hypot(key(halves ? f : 2 * f), key(halves ? f + pairs : 2 * f + 1));
          want += one;
          size += std::abs(one);
        }
        INFO("round " << round << " query head " << q << " place " << i);
        REQUIRE(std::abs(static_cast<double>(out[static_cast<std::size_t>(q * stride + i)]) - want) <= 1e-5 * (size + 1e-3));
      }
      REQUIRE(out[static_cast<std::size_t>(q * stride + stride - 1)] == 7.0f);
    }
  });
}

}  // namespace
}  // namespace kvpolicy_test
