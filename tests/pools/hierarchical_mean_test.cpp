#include "kvpolicy/pools/hierarchical_mean.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"

namespace kvpolicy_test {
namespace {

TEMPLATE_TEST_CASE("a chunk is the mean of its pages and a grid of its chunks, open ones of what they have", "[pool]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(91);
  for (int round = 0; round < 60; ++round) {
    cache_shape shape = random_shape(random, 150, random.between(1, 3));
    shape.head_dim = random.between(1, 16);
    random_cache const cache = random_cache_of(shape, random);
    segments::hierarchy const units{static_cast<std::int32_t>(random.between(1, 12)),
                                    static_cast<std::int32_t>(random.between(1, 5)),
                                    static_cast<std::int32_t>(random.between(1, 5))};
    std::int64_t const n = random.between(1, shape.max_tokens);
    pools::hierarchical_mean const pool;
    auto made = pool.start(shape, units);
    TestType on(shape);
    on.run([&](auto& exec) {
      for (std::int64_t l = 0; l < shape.layers; ++l) pool.update(made, own_view{&cache, n}, {l}, {0, shape.kv_heads}, n, exec);
      pool.refresh(made, exec);
    });
    std::int64_t const dims = shape.layers * shape.kv_heads * shape.head_dim;
    std::vector<std::vector<double>> finer;
    for (std::int64_t first = 0; first < n; first += units.page) {
      std::vector<double> page;
      for (std::int64_t i = 0; i < dims; ++i) {
        page.push_back(naive::mean(cache, i / shape.head_dim / shape.kv_heads, i / shape.head_dim % shape.kv_heads,
                                   i % shape.head_dim, first, std::min<std::int64_t>(n, first + units.page)));
      }
      finer.push_back(page);
    }
    for (std::size_t level = 0; level < 3; ++level) {
      if (level > 0) {
        auto const fan_out = static_cast<std::size_t>(level == 1 ? units.pages_per_chunk : units.chunks_per_grid);
        std::vector<std::vector<double>> coarser;
        for (std::size_t first = 0; first < finer.size(); first += fan_out) {
          std::size_t const last = std::min(finer.size(), first + fan_out);
          std::vector<double> mean(finer[0].size());
          for (std::size_t u = first; u < last; ++u) {
            for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += finer[u][i] / static_cast<double>(last - first);
          }
          coarser.push_back(mean);
        }
        finer = coarser;
      }
      table<float> const got = made.of(level);
      REQUIRE(got.rows == std::ssize(finer));
      double worst = 0;
      for (std::size_t u = 0; u < finer.size(); ++u) {
        for (std::size_t i = 0; i < finer[u].size(); ++i) {
          worst = std::max(worst, std::abs(finer[u][i] - got(static_cast<std::int64_t>(u), static_cast<std::int64_t>(i))));
        }
      }
      INFO("round " << round << " level " << level);
      REQUIRE(worst < 1e-5);  // of keys in [-1, 1]
    }
  }
}

TEST_CASE("a hierarchy of nothing is refused", "[pool]") {
  cache_shape const shape{1, 1, 1, 4, 16, element_type::f32};
  REQUIRE_THROWS_AS(pools::hierarchical_mean{}.start(shape, {0, 8, 8}), invalid_value);
  REQUIRE_THROWS_AS(pools::hierarchical_mean{}.start(shape, {32, 0, 8}), invalid_value);
  REQUIRE_THROWS_AS(pools::hierarchical_mean{}.start(shape, {32, 8, 0}), invalid_value);
}

}  // namespace
}  // namespace kvpolicy_test
