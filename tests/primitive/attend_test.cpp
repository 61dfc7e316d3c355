#include "kvpolicy/primitive/attend.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstring>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"

namespace kvpolicy_test {
namespace {

range_list random_list(std::int64_t tokens, random_source& random) {
  range_list list;
  if (random.one_in(12)) return list;
  for (std::int64_t at = random.one_in(2) ? 0 : random.between(0, tokens - 1); at < tokens;) {
    std::int64_t const end = std::min(tokens, at + random.between(1, random.one_in(3) ? tokens : 9));
    append(list, at, end, random.pick(std::array{reason::sink, reason::scored, reason::recent}));
    at = end + random.between(0, 7);
  }
  return list;
}

struct attended_rows {
  std::vector<float> out;
  std::vector<float> log_sum_exp;
};

template <class On>
attended_rows attend_on(On& on, random_cache const& cache, std::vector<float> const& queries, selection const& kept,
                        float scale, std::int64_t n) {
  cache_shape const& shape = cache.shape();
  attended_rows made{std::vector<float>(static_cast<std::size_t>(shape.q_heads * shape.head_dim)),
                     std::vector<float>(static_cast<std::size_t>(shape.q_heads))};
  on.run([&](auto& exec) {
    attend({queries.data(), shape.q_heads, shape.head_dim, scale}, cache.keys(0, n), cache.values(0, n), kept,
           table<float>{made.out.data(), shape.q_heads, shape.head_dim, shape.head_dim}, made.log_sum_exp, exec);
  });
  return made;
}

// Values are in [-1, 1] and logits below 10: outputs and log-sum-exp agree with float64 within 2e-5.
TEMPLATE_TEST_CASE("attend is the softmax over the selected tokens times their values", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(31);
  for (int round = 0; round < 120; ++round) {
    cache_shape const shape = random_shape(random, round % 10 == 0 ? 900 : 200);
    random_cache const cache = random_cache_of(shape, random);
    std::int64_t const n = shape.max_tokens;
    float const scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
    std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim, 2);
    scope const granularity = random.pick(std::array{scope::request, scope::layer, scope::head});
    std::vector<range_list> lists;
    for (std::int64_t i = 0; i < (granularity == scope::head ? shape.kv_heads : 1); ++i)
      lists.push_back(random_list(n, random));
    selection const kept(granularity, lists, shape.kv_heads);
    TestType on(shape);
    attended_rows const got = attend_on(on, cache, queries, kept, scale, n);
    for (std::int64_t q = 0; q < shape.q_heads; ++q) {
      std::int64_t const h = q / shape.group();
      std::vector<std::int64_t> tokens;
      for (token_range const& range : lists[granularity == scope::head ? static_cast<std::size_t>(h) : 0]) {
        for (std::int64_t t = range.begin; t < range.end; ++t) tokens.push_back(t);
      }
      naive::attended const want = naive::attend(cache, queries.data() + q * shape.head_dim, scale, 0, h, tokens);
      INFO("round " << round << " query head " << q << " tokens " << tokens.size());
      float const sum = got.log_sum_exp[static_cast<std::size_t>(q)];
      if (tokens.empty()) REQUIRE(sum == -std::numeric_limits<float>::infinity());
      else REQUIRE(std::abs(sum - want.log_sum_exp) < 2e-5);
      double worst = 0;
      for (std::size_t d = 0; d < want.out.size(); ++d) {
        worst = std::max(
            worst, std::abs(static_cast<double>(got.out[static_cast<std::size_t>(q * shape.head_dim) + d]) - want.out[d]));
      }
      REQUIRE(worst < 2e-5);
    }
  }
}

// attend_block of few queries is attend itself, so that these are checked from the definition.
TEMPLATE_TEST_CASE("attend caps logits, adds slopes, and counts sinks among the denominators", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(35);
  for (int round = 0; round < 60; ++round) {
    cache_shape const shape = random_shape(random, 200);
    random_cache const cache = random_cache_of(shape, random);
    std::int64_t const n = shape.max_tokens;
    std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim, 2);
    std::vector<float> const slopes = random.reals(shape.q_heads, .05f);
    std::vector<float> const sinks = random.reals(shape.q_heads, 2);
    attention_terms const terms{.soft_cap = random.one_in(2) ? 1.5f : 0,
                                .slopes = random.one_in(2) ? slopes.data() : nullptr,
                                .sinks = random.one_in(2) ? sinks.data() : nullptr};
    std::vector<range_list> const lists{random_list(n, random)};
    float const scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
    std::vector<float> out(queries.size());
    std::vector<float> sums(static_cast<std::size_t>(shape.q_heads));
    TestType on(shape);
    bool summed = true;
    on.run([&](auto& exec) {
      auto const run = [&](std::span<float> log_sum_exp) {
        attend({queries.data(), shape.q_heads, shape.head_dim, scale}, cache.keys(0, n), cache.values(0, n),
               selection(scope::layer, lists, shape.kv_heads), terms,
               table<float>{out.data(), shape.q_heads, shape.head_dim, shape.head_dim}, log_sum_exp, exec);
      };
      try {
        run(sums);
      } catch (unsupported const&) {  // on a GPU, which is asked again without
        summed = false;
        run({});
      }
    });
    if constexpr (std::is_same_v<TestType, on_host>) REQUIRE(summed);
    for (std::int64_t q = 0; q < shape.q_heads; ++q) {
      std::int64_t const h = q / shape.group();
      std::vector<double> logits;
      std::vector<std::int64_t> seen;
      for (token_range const& range : lists[0]) {
        for (std::int64_t t = range.begin; t < range.end; ++t) {
          double logit = static_cast<double>(scale) * naive::dot(queries.data() + q * shape.head_dim, cache, 0, h, t);
          if (terms.soft_cap != 0) logit = 1.5 * std::tanh(logit / 1.5);
          if (terms.slopes != nullptr)
            logit -= static_cast<double>(slopes[static_cast<std::size_t>(q)]) * static_cast<double>(n - 1 - t);
          logits.push_back(logit);
          seen.push_back(t);
        }
      }
      if (terms.sinks != nullptr) logits.push_back(sinks[static_cast<std::size_t>(q)]);
      double total = 0;
      for (double const logit : logits) total += std::exp(logit);
      INFO("round " << round << " query head " << q);
      if (summed && total > 0) REQUIRE(std::abs(sums[static_cast<std::size_t>(q)] - std::log(total)) < 2e-5);
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        double want = 0;
        for (std::size_t i = 0; i < seen.size(); ++i)
          want += std::exp(logits[i]) / total * static_cast<double>(cache.value(0, h, seen[i], d));
        REQUIRE(std::abs(static_cast<double>(out[static_cast<std::size_t>(q * shape.head_dim + d)]) - want) < 1e-4);
      }
    }
  }
}

TEMPLATE_TEST_CASE("attend needs no log-sum-exp, and large logits do not overflow it", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(32);
  cache_shape const shape{1, 3, 1, 20, 300, element_type::f32};
  random_cache cache(shape, layout::token_major, 16, random);
  // Token 211 wins by hundreds: its value is the output.
  for (std::int64_t d = 0; d < 20; ++d) cache.set_key(0, 0, 211, d, 40);
  std::vector<float> const queries(60, 2.0f);
  std::vector<range_list> const lists{{{0, 300, reason::scored}}};
  std::vector<float> out(60);
  TestType on(shape);
  on.run([&](auto& exec) {
    attend({queries.data(), 3, 20, 1}, cache.keys(0, 300), cache.values(0, 300), selection(scope::layer, lists, 1),
           table<float>{out.data(), 3, 20, 20}, {}, exec);
  });
  for (std::int64_t i = 0; i < 60; ++i)
    REQUIRE(std::abs(out[static_cast<std::size_t>(i)] - cache.value(0, 0, 211, i % 20)) < 1e-6);
}

TEMPLATE_TEST_CASE("attend over rows by index is attend over the tokens that the ranks name", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(34);
  for (int round = 0; round < 50; ++round) {
    cache_shape const shape = random_shape(random, 200);
    random_cache const cache = random_cache_of(shape, random);
    std::int64_t const n = shape.max_tokens;
    bool const each = random.one_in(2);
    std::int64_t const lists_in_all = each ? shape.kv_heads : 1;
    std::vector<range_list> lists;
    std::vector<range_list> by_index;
    std::vector<std::int32_t> ranks(static_cast<std::size_t>(lists_in_all * n), -1);
    for (std::int64_t l = 0; l < lists_in_all; ++l) {
      lists.push_back(random_list(n, random));
      std::int32_t rank = 0;
      for (token_range const& range : lists.back()) {
        for (std::int32_t t = range.begin; t < range.end; ++t) ranks[static_cast<std::size_t>(l * n + rank++)] = t;
      }
      by_index.push_back({});
      append(by_index.back(), 0, rank, reason::scored);
    }
    scope const granularity = each ? scope::head : scope::layer;
    std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim, 2);
    TestType on(shape);
    attended_rows const want = attend_on(on, cache, queries, selection(granularity, lists, shape.kv_heads), .3f, n);
    std::vector<float> got(want.out.size());
    on.run([&](auto& exec) {
      rows keys = cache.keys(0, n);
      rows values = cache.values(0, n);
      keys.indices = values.indices = ranks.data();
      keys.index_stride = values.index_stride = each ? n : 0;
      attend({queries.data(), shape.q_heads, shape.head_dim, .3f}, keys, values,
             selection(granularity, by_index, shape.kv_heads),
             table<float>{got.data(), shape.q_heads, shape.head_dim, shape.head_dim}, {}, exec);
    });
    for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - want.out[i]) < 1e-6f);
  }
}

#if defined(KVPOLICY_TEST_SIMD)
TEST_CASE("attend gives the same bits whether one thread worked or two", "[primitive]") {
  random_source random(33);
  for (int round = 0; round < 40; ++round) {
    cache_shape const shape = random_shape(random, 2500);
    random_cache const cache = random_cache_of(shape, random);
    std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim, 2);
    std::vector<range_list> const lists{random_list(shape.max_tokens, random)};
    selection const kept(scope::layer, lists, shape.kv_heads);
    on_simd alone(shape);
    on_team together(shape);
    attended_rows const one = attend_on(alone, cache, queries, kept, .3f, shape.max_tokens);
    attended_rows const two = attend_on(together, cache, queries, kept, .3f, shape.max_tokens);
    REQUIRE(std::memcmp(one.out.data(), two.out.data(), one.out.size() * sizeof(float)) == 0);
    REQUIRE(one.log_sum_exp == two.log_sum_exp);
  }
}
#endif

}  // namespace
}  // namespace kvpolicy_test
