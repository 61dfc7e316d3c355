#include "kvpolicy/primitive/attended_set.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "primitive/inputs.hpp"

namespace kvpolicy_test {
namespace {

TEMPLATE_TEST_CASE("an attended set is the best of a query's attention, averaged over neighbours", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(57);
  int compared = 0;
  for (int round = 0; round < 100; ++round) {
    cache_shape const shape = one_head_shape(random, 120);
    random_cache const cache = random_cache_of(shape, random);
    random_rows const keys(cache, random);
    std::int64_t const tokens = random.between(1, keys.tokens());  // of those that are there, the first
    std::int64_t const count = random.between(0, tokens + 2);
    smoothing const smooth{.how = smoothing::kind::average, .width = 2 * random.between(0, 4) + 1};
    float const scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
    std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim, 2);
    range_list list;
    append(list, 0, tokens, reason::scored);
    std::vector<double> const weights = naive::list_attention(keys, shape, queries, 0, scale, list);
    std::vector<double> scores;
    for (std::int64_t t = 0; t < tokens; ++t) scores.push_back(naive::smoothed(weights, t, smooth));
    if (naive::close_call(scores, count, 1e-4 * *std::max_element(scores.begin(), scores.end()))) continue;
    attended_set_scratch scratch(shape.max_tokens);
    std::vector<std::int32_t> got;
    TestType on(shape);
    on.run([&](auto& exec) {
      auto const set = attended_set({queries.data(), shape.q_heads, shape.head_dim, scale}, keys.get(), tokens, count,
                                    smooth.width, group_merge::mean, scratch, exec);
      got.assign(set.begin(), set.end());
    });
    INFO("round " << round << " tokens " << tokens << " count " << count);
    REQUIRE(got == naive::top_k(scores, count));
    ++compared;
  }
  REQUIRE(compared > 40);
}

}  // namespace
}  // namespace kvpolicy_test
