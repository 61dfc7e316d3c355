#include "kvpolicy/primitive/score.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "primitive/inputs.hpp"

namespace kvpolicy_test {
namespace {

// fp32 sums: off by at most 1e-5 of the sum of the terms' sizes.
TEMPLATE_TEST_CASE("score_dot is the dot product with the named rows, and reads no others", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(11);
  for (int round = 0; round < 150; ++round) {
    std::int64_t const dims = round < 131 ? round + 1 : random.between(1, 3000);
    std::int64_t const all = random.between(1, 90);
    std::int64_t const stride = dims + random.between(0, 3);
    std::vector<float> const anchor = random.reals(dims);
    std::vector<float> vectors = random.reals(all * stride);
    std::vector<std::int32_t> units;
    for (std::int64_t u = 0; u < all; ++u) {
      if (random.one_in(3)) {
        // A row that is not named holds what would show.
        std::fill_n(vectors.begin() + u * stride, dims, std::numeric_limits<float>::quiet_NaN());
      } else {
        units.push_back(static_cast<std::int32_t>(u));
      }
    }
    std::vector<float> scores(units.size() + 1, 7.0f);
    TestType on({1, 1, 1, 1, 128, element_type::f32});
    on.run([&](auto& exec) {
      score_dot(anchor, table<float const>{vectors.data(), all, dims, stride}, units, std::span(scores).first(units.size()),
                exec);
    });
    for (std::size_t i = 0; i < units.size(); ++i) {
      double want = 0;
      double size = 1e-30;
      for (std::int64_t d = 0; d < dims; ++d) {
        double const term = static_cast<double>(anchor[static_cast<std::size_t>(d)]) *
                            static_cast<double>(vectors[static_cast<std::size_t>(units[i] * stride + d)]);
        want += term;
        size += std::abs(term);
      }
      INFO("dims " << dims << " unit " << units[i]);
      REQUIRE(std::abs(scores[i] - want) <= 1e-5 * size);
    }
    REQUIRE(scores.back() == 7.0f);
  }
}

TEMPLATE_TEST_CASE("score_bounds is the group's mean of the largest q.k that the bounds allow", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(12);
  for (int round = 0; round < 90; ++round) {
    cache_shape const shape = random_shape(random, 200);
    random_cache const cache = random_cache_of(shape, random, round % 3 == 0 ? content::negative : content::plain);
    std::int64_t const n = shape.max_tokens;
    std::int64_t const unit = random.between(1, 40);
    std::int64_t const units = (n + unit - 1) / unit;
    std::int64_t const head_stride = shape.head_dim;
    std::vector<float> const queries = random.reals(shape.q_heads * head_stride);
    stored_bounds bounds(shape.type, shape.kv_heads, units, shape.head_dim);
    std::int64_t const stride = units + 2;
    std::vector<float> scores(static_cast<std::size_t>(shape.kv_heads * stride), 7.0f);
    TestType on(shape);
    on.run([&](auto& exec) {
      pool_bounds(cache.keys(0, n), {unit, 0, n}, bounds, exec);
      // The scale is the attention's: it changes no order, and the bound is of q.k.
      score_bounds({queries.data(), shape.q_heads, head_stride, .25f}, bounds, units, group_merge::mean,
                   table<float>{scores.data(), shape.kv_heads, units, stride}, exec);
    });
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (std::int64_t u = 0; u < units; ++u) {
        auto const [want, size] = naive::bound_score(cache, queries, 0, h, u * unit, std::min(n, (u + 1) * unit));
        INFO("round " << round << " head " << h << " unit " << u);
        REQUIRE(std::abs(scores[static_cast<std::size_t>(h * stride + u)] - want) <= 1e-5 * size + 1e-12);
      }
      REQUIRE(scores[static_cast<std::size_t>(h * stride + units)] == 7.0f);
    }
  }
}

TEMPLATE_TEST_CASE("the maximum over a group is the largest of its query heads' own scores", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(14);
  for (std::int64_t const group : {1, 2, 3, 4, 5, 8, 9}) {
    for (std::int64_t const units : {1, 7, 64, 65, 200}) {
      cache_shape const shape{1, 3 * group, 3, random.between(1, 130), units, random.pick(types)};
      random_cache const cache = random_cache_of(shape, random, content::plain);
      std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim);
      stored_bounds bounds(shape.type, 3, units, shape.head_dim);
      auto const table_of = [&](std::vector<float>& scores) { return table<float>{scores.data(), 3, units, units}; };
      std::vector<float> found(static_cast<std::size_t>(3 * units));
      std::vector<float> want(found.size(), -std::numeric_limits<float>::infinity());
      std::vector<float> one(found.size());
      TestType on(shape);
      on.run([&](auto& exec) {
        pool_bounds(cache.keys(0, units), {1, 0, units}, bounds, exec);
        score_bounds({queries.data(), shape.q_heads, shape.head_dim, 1}, bounds, units, group_merge::maximum, table_of(found),
                     exec);
        for (std::int64_t g = 0; g < group; ++g) {  // one query head of each KV head
          query_heads const few{queries.data() + g * shape.head_dim, 3, group * shape.head_dim, 1};
          score_bounds(few, bounds, units, group_merge::mean, table_of(one), exec);
          for (std::size_t i = 0; i < want.size(); ++i) want[i] = std::max(want[i], one[i]);
        }
      });
      for (std::size_t i = 0; i < want.size(); ++i) {
        INFO("group " << group << " units " << units << " at " << i);
        REQUIRE(std::abs(found[i] - want[i]) <= 1e-5f * static_cast<float>(shape.head_dim));
      }
    }
  }
}

/// Scores of one KV head's units of four tokens by the bounds of all its keys.
template <class On>
std::vector<float> bound_scores(random_cache const& cache, std::vector<float> const& queries) {
  cache_shape const& shape = cache.shape();
  std::int64_t const units = shape.max_tokens / 4;
  stored_bounds bounds(shape.type, 1, units, shape.head_dim);
  std::vector<float> scores(static_cast<std::size_t>(units));
  On(shape).run([&](auto& exec) {
    pool_bounds(cache.keys(0, shape.max_tokens), {4, 0, shape.max_tokens}, bounds, exec);
    score_bounds({queries.data(), shape.q_heads, shape.head_dim, 1}, bounds, units, group_merge::mean,
                 table<float>{scores.data(), 1, units, units}, exec);
  });
  return scores;
}

TEMPLATE_TEST_CASE("a unit of nothing but NaN scores so that it ranks last", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(13);
  for (std::int64_t const dim : {1, 7, 16, 64, 130}) {
    cache_shape const shape{1, 2, 1, dim, 12, element_type::f16};
    random_cache cache(shape, layout::head_major, 4, random);
    for (std::int64_t t = 4; t < 8; ++t) {
      for (std::int64_t d = 0; d < dim; ++d) cache.set_key(0, 0, t, d, std::numeric_limits<float>::quiet_NaN());
    }
    std::vector<float> const scores = bound_scores<TestType>(cache, random.reals(2 * dim));
    REQUIRE(std::isfinite(scores[0]));
    REQUIRE(std::isfinite(scores[2]));
    REQUIRE(scores[1] < std::min(scores[0], scores[2]));
  }
}

// The query is negative where the key is +inf: the larger product is the one with the minimum, which is finite.
TEMPLATE_TEST_CASE("an infinite key counts only through the product that it is in", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(14);
  for (std::int64_t const dim : {1, 7, 16, 64, 130}) {
    cache_shape const shape{1, 1, 1, dim, 8, element_type::f16};
    random_cache cache(shape, layout::head_major, 4, random);
    cache.set_key(0, 0, 2, dim - 1, std::numeric_limits<float>::infinity());
    std::vector<float> const queries(static_cast<std::size_t>(dim), -.5f);
    std::vector<float> const scores = bound_scores<TestType>(cache, queries);
    for (std::int64_t u = 0; u < 2; ++u) {
      auto const [want, size] = naive::bound_score(cache, queries, 0, 0, u * 4, u * 4 + 4);
      INFO("head size " << dim << " unit " << u);
      REQUIRE(std::abs(scores[static_cast<std::size_t>(u)] - want) <= 1e-5 * size);
    }
  }
}

}  // namespace
}  // namespace kvpolicy_test
