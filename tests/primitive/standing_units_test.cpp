#include "kvpolicy/primitive/standing_units.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "primitive/inputs.hpp"

namespace kvpolicy_test {
namespace {

// By hand beside the code: sort whole units by their best token, take while the budget lasts.
TEMPLATE_TEST_CASE("units stand by the best weight of their tokens, whole ones while the budget lasts", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(61);
  int compared = 0;
  int stood = 0;
  for (int round = 0; round < 150; ++round) {
    cache_shape const shape = one_head_shape(random, 120);
    random_cache const cache = random_cache_of(shape, random);
    random_rows const keys(cache, random);
    std::int64_t const n = keys.tokens();
    std::int64_t const w = std::min(n, random.between(1, 9));
    std::int64_t const before = n - w;
    float const scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
    std::vector<float> const queries = random.reals(w * shape.q_heads * shape.head_dim, 2);
    std::vector<std::int32_t> ends;  // some empty, some inside the window
    for (std::int64_t end = random.between(0, 9); end <= n; end += random.between(0, 12)) {
      ends.push_back(static_cast<std::int32_t>(end));
    }
    std::int64_t const budget = random.between(0, n + 3);
    std::vector<std::uint8_t> got(ends.size(), 7);
    standing_units_scratch scratch(shape.max_tokens, static_cast<std::int64_t>(ends.size()));
    TestType on(shape);
    on.run([&](auto& exec) {
      standing_units({queries.data(), w, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, scale}, keys.get(),
                     std::span<std::int32_t const>(ends), budget, scratch, std::span(got), exec);
    });
    std::vector<double> const weights = naive::window_attention(keys, shape, queries, 0, w, scale, {});
    struct unit {
      std::size_t place;
      std::int64_t size;
      double best;
    };
    std::vector<unit> units;
    for (std::size_t u = 0; u < ends.size(); ++u) {
      std::int64_t const begin = u == 0 ? 0 : ends[u - 1];
      std::int64_t const end = std::min<std::int64_t>(ends[u], before);
      if (end <= begin) continue;
      units.push_back({u, end - begin, *std::max_element(weights.begin() + begin, weights.begin() + end)});
    }
    std::ranges::stable_sort(units, [](unit const& a, unit const& b) { return a.best > b.best; });
    std::vector<std::uint8_t> want(ends.size());
    std::int64_t left = budget;
    bool close = false;
    for (std::size_t i = 0; i < units.size(); ++i) {
      close = close || (i + 1 < units.size() && units[i].best - units[i + 1].best < 1e-4 * units[i].best);
      if (units[i].size <= left) want[units[i].place] = 1;
      left = units[i].size <= left ? left - units[i].size : 0;
    }
    if (close) continue;
    INFO("round " << round << " tokens " << n << " window " << w << " budget " << budget);
    REQUIRE(got == want);
    ++compared;
    stood += static_cast<int>(std::ranges::count(want, std::uint8_t{1}));
  }
  REQUIRE(compared > 80);
  REQUIRE(stood > 100);
}

TEST_CASE("nothing stands where all is the window, or there are no queries", "[primitive]") {
  std::array<float, 4> const keys{1, 2, 3, 4};
  rows one{};
  one.base = reinterpret_cast<std::byte const*>(keys.data());
  one.type = element_type::f32;
  one.heads = 1;
  one.tokens = 4;
  one.head_dim = 1;
  one.head_stride = 16;
  one.token_stride = one.dim_stride = 4;
  std::array<std::int32_t, 2> const ends{2, 4};
  std::array<float, 4> const queries{1, 1, 1, 1};
  standing_units_scratch scratch(4, 2);
  host_exec exec;
  for (std::int64_t const w : {4, 0}) {
    std::array<std::uint8_t, 2> stands{7, 7};
    standing_units({queries.data(), w, 1, 1, 1, 1}, one, std::span<std::int32_t const>(ends), 4, scratch,
                   std::span<std::uint8_t>(stands), exec);
    REQUIRE(stands == std::array<std::uint8_t, 2>{0, 0});
  }
}

}  // namespace
}  // namespace kvpolicy_test
