#include "kvpolicy/presets/quest.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/history.hpp"
#include "conformance/naive.hpp"

namespace kvpolicy_test {
namespace {

TEMPLATE_TEST_CASE("quest reads the pages of the largest bounds, the window's pages and no others", "[presets]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(121);
  int compared = 0;
  for (int round = 0; round < 400; ++round) {
    cache_shape shape = random_shape(random, 150, random.between(1, 2));
    shape.head_dim = random.between(1, 24);
    random_cache const cache = random_cache_of(shape, random);
    auto policy = quest_model::draw(shape, random);
    try {
      check(policy, shape);
    } catch (invalid_value const&) {
      continue;
    }
    std::int64_t const n = random.between(1, shape.max_tokens);
    std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim);
    std::int64_t const page = policy.page;
    std::int64_t const pages = (n + page - 1) / page;
    std::int64_t const recent = std::max<std::int64_t>(0, pages - std::max(1, policy.recent_pages));
    std::int64_t const sinks = std::min<std::int64_t>(policy.sink_pages, recent);
    std::int64_t const budget = std::max<std::int64_t>(1, policy.tokens / page);
    TestType on(shape);
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      lists_copy lists;
      on.run([&](auto& exec) {
        auto state = start(policy, shape);
        query_heads const heads{queries.data(), shape.q_heads, shape.head_dim, .125f};
        prefill_all(state, own_view{&cache, n - 1}, exec);
        for (std::int64_t i = 0; i <= l; ++i) lists = copy_of(state.choose(own_view{&cache, n}, {i}, {heads}, exec));
      });
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        std::vector<double> scores;
        double size = 0;
        for (std::int64_t u = sinks; u < recent; ++u) {
          auto const [score, terms] = naive::bound_score(cache, queries, l, h, u * page, std::min(n, u * page + page));
          scores.push_back(score);
          size = std::max(size, terms);
        }
        std::int64_t const k = std::max<std::int64_t>(0, budget - sinks - (pages - recent));
        if (naive::close_call(scores, k, 1e-5 * size)) continue;
        std::vector<bool> want(static_cast<std::size_t>(pages), false);
        for (std::int64_t u = 0; u < pages; ++u) want[static_cast<std::size_t>(u)] = u < sinks || u >= recent;
        for (std::int32_t const u : naive::top_k(scores, k)) want[static_cast<std::size_t>(sinks + u)] = true;
        bool same = true;
        for (std::int64_t t = 0; t < n; ++t) {
          same = same && reads(lists[static_cast<std::size_t>(h)], t) == want[static_cast<std::size_t>(t / page)];
        }
        INFO("round " << round << " layer " << l << " head " << h << " tokens " << n << " page " << page << " budget "
                      << budget);
        REQUIRE(same);
        ++compared;
      }
    }
  }
  REQUIRE(compared >= 500);
}

TEST_CASE("quest refuses a budget below its window or of nothing, and reads all where the budget is above the context",
          "[presets]") {
  cache_shape const shape{1, 1, 1, 8, 256, element_type::f16};
  REQUIRE_NOTHROW(check(presets::quest{.tokens = 256}, shape));
  REQUIRE_NOTHROW(check(presets::quest{.tokens = 48, .page = 16, .sink_pages = 1, .recent_pages = 2}, shape));
  REQUIRE_THROWS_AS(check(presets::quest{.tokens = 47, .page = 16, .sink_pages = 1, .recent_pages = 2}, shape), invalid_value);
  REQUIRE_NOTHROW(check(presets::quest{.tokens = 257}, shape));
  REQUIRE_THROWS_AS(check(presets::quest{.tokens = 0}, shape), invalid_value);
  REQUIRE_THROWS_AS(start(presets::quest{.tokens = 64, .page = 0}, shape), invalid_value);
}

TEST_CASE("quest's paper setting is pages of 16 by minima and maxima, two dense layers", "[presets]") {
  constexpr presets::quest paper = presets::quest::paper();
  STATIC_REQUIRE(paper.page == 16);
  STATIC_REQUIRE(paper.sink_pages == 0);
  STATIC_REQUIRE(paper.metadata == pools::bounds::kind::range);
  STATIC_REQUIRE(paper.group == group_merge::mean);
  STATIC_REQUIRE(paper.layers.dense_first == 2);
}

}  // namespace
}  // namespace kvpolicy_test
