#include "kvpolicy/primitive/list_attention.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstring>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "primitive/inputs.hpp"

namespace kvpolicy_test {
namespace {

TEMPLATE_TEST_CASE("list_attention is the softmax over a list alone, mean or maximum over the group", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  with_rows(26, 120, {150, 1200, 8}, [](cache_shape const& shape, random_rows const& keys, random_source& random, int round) {
    float const scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
    std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim, 2);
    std::vector<range_list> lists;
    std::int64_t const count = random.one_in(2) ? 1 : shape.kv_heads;
    while (std::ssize(lists) < count) lists.push_back(random_list(keys.tokens(), random));
    std::int64_t most = 0;
    for (range_list const& list : lists) most = std::max(most, token_count(list));
    std::int64_t const stride = most + 1;
    std::vector<float> out(static_cast<std::size_t>(shape.kv_heads * stride), 7.0f);
    group_merge const merged = random.one_in(2) ? group_merge::mean : group_merge::maximum;
    TestType on(shape);
    on.run([&](auto& exec) {
      list_attention({queries.data(), shape.q_heads, shape.head_dim, scale}, keys.get(), std::span<range_list const>(lists),
                     table<float>{out.data(), shape.kv_heads, most, stride}, exec, merged);
    });
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      range_list const& list = lists[lists.size() == 1 ? 0 : static_cast<std::size_t>(h)];
      std::vector<double> const want = naive::list_attention(keys, shape, queries, h, scale, list, merged);
      for (std::size_t i = 0; i < want.size(); ++i) {
        INFO("round " << round << " head " << h << " place " << i << " of " << want.size());
        REQUIRE(std::abs(out[static_cast<std::size_t>(h * stride) + i] - want[i]) <= 1e-4 * want[i]);
      }
      for (std::int64_t i = std::ssize(want); i < stride; ++i) REQUIRE(out[static_cast<std::size_t>(h * stride + i)] == 7.0f);
    }
  });
}

TEMPLATE_TEST_CASE("a token alone has all the attention, however large its logit", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(27);
  cache_shape const shape{1, 3, 1, 7, 9, element_type::bf16};
  random_cache cache(shape, layout::transposed, 4, random);
  for (std::int64_t d = 0; d < 7; ++d) cache.set_key(0, 0, 5, d, 1000);
  std::vector<float> const queries(21, 50.0f);
  TestType on(shape);
  for (range_list const& list : {range_list{{5, 6, reason::scored}}, range_list{{2, 9, reason::scored}}}) {
    std::vector<float> out(7, 9.0f);
    std::array const lists{list};
    on.run([&](auto& exec) {
      list_attention({queries.data(), 3, 7, 1}, cache.keys(0, 9), std::span<range_list const>(lists),
                     table<float>{out.data(), 1, 7, 7}, exec);
    });
    std::vector<float> want(7, 9.0f);
    if (list[0].begin == 5) want[0] = 1;
    else want = {0, 0, 0, 1, 0, 0, 0};
    for (std::size_t i = 0; i < 7; ++i) REQUIRE(std::abs(out[i] - want[i]) < 1e-6f);
  }
}

#if defined(KVPOLICY_TEST_SIMD)
TEST_CASE("list_attention gives the same bits whether one thread worked or two", "[primitive]") {
  random_source random(28);
  for (int round = 0; round < 30; ++round) {
    cache_shape const shape = random_shape(random, 2500);
    random_cache const cache = random_cache_of(shape, random);
    std::int64_t const n = shape.max_tokens;
    std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim, 2);
    std::array const lists{random_list(n, random)};
    std::vector<float> one(static_cast<std::size_t>(shape.kv_heads * n));
    std::vector<float> two(one);
    auto const with = [&](auto& on, std::vector<float>& out) {
      on.run([&](auto& exec) {
        list_attention({queries.data(), shape.q_heads, shape.head_dim, .3f}, cache.keys(0, n),
                       std::span<range_list const>(lists), table<float>{out.data(), shape.kv_heads, n, n}, exec);
      });
    };
    on_simd alone(shape);
    on_team together(shape);
    with(alone, one);
    with(together, two);
    REQUIRE(std::memcmp(one.data(), two.data(), one.size() * sizeof(float)) == 0);
  }
}
#endif

}  // namespace
}  // namespace kvpolicy_test
