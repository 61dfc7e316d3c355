#include "kvpolicy/primitive/window_attention.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"

namespace kvpolicy_test {
namespace {

/// Queries `[tokens, q_heads, head_dim]` with a few floats between tokens and between heads.
struct spaced_queries {
  std::vector<float> plain;  ///< without the floats between
  std::vector<float> cells;
  query_window window;

  spaced_queries(cache_shape const& shape, std::int64_t tokens, float scale, random_source& random, float size = 2) {
    std::int64_t const head_stride = shape.head_dim + random.between(0, 3);
    std::int64_t const token_stride = shape.q_heads * head_stride + random.between(0, 5);
    plain = random.reals(tokens * shape.q_heads * shape.head_dim, size);
    cells.assign(static_cast<std::size_t>(tokens * token_stride), std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t q = 0; q < shape.q_heads; ++q) {
        std::copy_n(plain.begin() + (t * shape.q_heads + q) * shape.head_dim, shape.head_dim,
                    cells.begin() + t * token_stride + q * head_stride);
      }
    }
    window = {cells.data(), tokens, shape.q_heads, token_stride, head_stride, scale};
  }
};

constexpr std::array<std::optional<group_merge>, 3> ways_to_merge{std::nullopt, group_merge::mean, group_merge::maximum};

// Every score is a mean of probabilities: relative to the float64 result, 1e-4 is allowed.
TEMPLATE_TEST_CASE("window_attention is softmax, mean over the window, smoothing, mean over the group", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  with_rows(21, 80, {160}, [](cache_shape const& shape, random_rows const& keys, random_source& random, int round) {
    std::int64_t const n = keys.tokens();
    std::int64_t const w = random.one_in(8) ? n : std::min(n, random.between(1, 12));
    smoothing const smooth{random.pick(std::array{smoothing::kind::none, smoothing::kind::average, smoothing::kind::maximum}),
                           2 * random.between(0, 20) + 1, random.pick(ways_to_merge),
                           random.pick(std::array{group_merge::mean, group_merge::maximum})};
    float const scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
    spaced_queries const queries(shape, w, scale, random);
    std::int64_t const stride = n - w + 1;
    std::vector<float> scores(static_cast<std::size_t>(shape.kv_heads * stride), 7.0f);
    TestType on(shape);
    on.run([&](auto& exec) {
      window_attention(queries.window, keys.get(), smooth, table<float>{scores.data(), shape.kv_heads, n - w, stride}, exec);
    });
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      std::vector<double> const want = naive::window_attention(keys, shape, queries.plain, h, w, scale, smooth);
      for (std::int64_t t = 0; t < n - w; ++t) {
        double const right = want[static_cast<std::size_t>(t)];
        INFO("round " << round << " head " << h << " token " << t << " of " << n << " window " << w);
        REQUIRE(std::abs(scores[static_cast<std::size_t>(h * stride + t)] - right) <= 1e-4 * right);
      }
      REQUIRE(scores[static_cast<std::size_t>(h * stride + n - w)] == 7.0f);
    }
  });
}

TEST_CASE("smooth_row is one row's smoothing, each kind of it", "[primitive]") {
  random_source random(29);
  for (int round = 0; round < 300; ++round) {
    std::int64_t const n = random.between(0, 60);
    smoothing const smooth{random.pick(std::array{smoothing::kind::none, smoothing::kind::average, smoothing::kind::maximum}),
                           2 * random.between(0, 20) + 1};
    std::vector<float> const row = random.reals(n);
    std::vector<double> const wide(row.begin(), row.end());
    std::vector<float> out(row.size());
    smooth_row(row, smooth, out);
    for (std::int64_t t = 0; t < n; ++t) {
      REQUIRE(std::abs(out[static_cast<std::size_t>(t)] - naive::smoothed(wide, t, smooth)) < 1e-5);
    }
  }
}

// Four tokens, one query, all keys equal: attention is 1/4 each. Average over 3 counts the padding zero: 2/12, 3/12, 2/12.
TEMPLATE_TEST_CASE("averaging counts the zeros beyond both ends, the maximum does not", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(22);
  cache_shape const shape{1, 1, 1, 4, 4, element_type::f32};
  random_cache const cache(shape, layout::head_major, 4, random, content::equal);
  std::vector<float> const query(4, 1.0f);
  std::vector<float> scores(3);
  TestType on(shape);
  auto const with = [&](smoothing smooth) {
    on.run([&](auto& exec) {
      window_attention({query.data(), 1, 1, 4, 4, 1}, cache.keys(0, 4), smooth, table<float>{scores.data(), 1, 3, 3}, exec);
    });
  };
  for (std::optional<group_merge> const of_group : ways_to_merge) {
    with({smoothing::kind::average, 3, of_group});
    REQUIRE(std::abs(scores[0] - 2 / 12.0) < 1e-6);
    REQUIRE(std::abs(scores[1] - 3 / 12.0) < 1e-6);
    REQUIRE(std::abs(scores[2] - 2 / 12.0) < 1e-6);
    with({smoothing::kind::maximum, 31, of_group});
    for (float const score : scores) REQUIRE(std::abs(score - .25) < 1e-6);
  }
}

// Three tokens; two query heads look at another one each, all but alone. By head both maxima reach everywhere: 1 for every
// token. Of the group's mean (1/2, 1/2) the maximum is 1/2.
TEMPLATE_TEST_CASE("a maximum of the group's mean is not the mean of the heads' maxima", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(23);
  cache_shape const shape{1, 2, 1, 2, 3, element_type::f32};
  random_cache cache(shape, layout::token_major, 4, random);
  std::array<std::array<float, 2>, 3> const keys{{{50, 0}, {0, 50}, {0, 0}}};
  for (std::size_t t = 0; t < 3; ++t) {
    for (std::size_t d = 0; d < 2; ++d)
      cache.set_key(0, 0, static_cast<std::int64_t>(t), static_cast<std::int64_t>(d), keys[t][d]);
  }
  std::vector<float> const queries{1, 0, 0, 1};
  std::vector<float> scores(2);
  TestType on(shape);
  for (std::optional<group_merge> const of_group : ways_to_merge) {
    on.run([&](auto& exec) {
      window_attention({queries.data(), 1, 2, 4, 2, 1}, cache.keys(0, 3), {smoothing::kind::maximum, 3, of_group},
                       table<float>{scores.data(), 1, 2, 2}, exec);
    });
    for (float const score : scores) REQUIRE(std::abs(score - (of_group == group_merge::mean ? .5 : 1.0)) < 1e-6);
  }
}

// Two query heads; the first one's query is NaN, the second weighs three equal keys alike.
TEMPLATE_TEST_CASE("the maximum over a group ignores a query head that is NaN", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(26);
  cache_shape const shape{1, 2, 1, 4, 3, element_type::f32};
  random_cache const cache(shape, layout::head_major, 4, random, content::equal);
  TestType on(shape);
  for (std::size_t const broken : {std::size_t{0}, std::size_t{4}}) {
    std::vector<float> queries(8, 1.0f);
    queries[broken] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> scores(2, -1.0f);
    on.run([&](auto& exec) {
      window_attention({queries.data(), 1, 2, 8, 4, 1}, cache.keys(0, 3), {.of_group = group_merge::maximum},
                       table<float>{scores.data(), 1, 2, 2}, exec);
    });
    for (float const score : scores) REQUIRE(std::abs(score - 1 / 3.0) < 1e-6);
  }
}

TEMPLATE_TEST_CASE("seen_attention is each token's mean weight over the queries that see it, and the group", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  with_rows(24, 70, {70, 300, 4}, [](cache_shape const& shape, random_rows const& keys, random_source& random, int round) {
    std::int64_t const n = keys.tokens();
    std::int64_t const w = n < 71 && random.one_in(2) ? n : std::min(n, random.between(1, 9));
    float const scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
    spaced_queries const queries(shape, w, scale, random);
    std::vector<float> scores(static_cast<std::size_t>(shape.kv_heads * (n + 2)), 7.0f);
    TestType on(shape);
    on.run([&](auto& exec) {
      seen_attention(queries.window, keys.get(), table<float>{scores.data(), shape.kv_heads, n, n + 2}, exec);
    });
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      std::vector<double> const want = naive::seen_attention(keys, shape, queries.plain, h, w, scale);
      for (std::int64_t t = 0; t < n; ++t) {
        double const right = want[static_cast<std::size_t>(t)];
        INFO("round " << round << " head " << h << " token " << t << " of " << n << " window " << w);
        REQUIRE(std::abs(scores[static_cast<std::size_t>(h * (n + 2) + t)] - right) <= 1e-4 * right);
      }
      REQUIRE(scores[static_cast<std::size_t>(h * (n + 2) + n)] == 7.0f);
    }
  });
}

// fp32 sums of queries of size 2: off by at most 2e-5 of what the terms' sizes come to.
TEMPLATE_TEST_CASE("following_queries is the mean product with the queries right behind a token, 0 where there are none",
                   "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  with_rows(25, 90, {200, 1500, 5}, [](cache_shape const& shape, random_rows const& keys, random_source& random, int round) {
    std::int64_t const n = keys.tokens();
    std::int64_t const first = random.between(0, n - 1);
    std::int64_t const last = random.between(first, n);
    std::int64_t const local = random.pick(std::array<std::int64_t, 4>{1, random.between(1, 9), random.between(1, 200), 5000});
    // The queries may begin anywhere, and end before the last token or behind it.
    std::int64_t const begin = random.between(0, n - 1);
    spaced_queries const queries(shape, random.between(1, std::min<std::int64_t>(n - begin + 5, 120)), .25f, random);
    // Where some tokens of a sequence are gone, those that are left stand further apart.
    std::vector<std::int32_t> positions;
    for (std::int64_t t = 0; t < n; ++t) {
      positions.push_back(
          static_cast<std::int32_t>((t == 0 ? -1 : positions.back()) + (random.one_in(3) ? random.between(1, 9) : 1)));
    }
    bool const apart = random.one_in(2);
    std::int64_t const stride = last - first + 1;
    std::vector<float> scores(static_cast<std::size_t>(shape.kv_heads * stride), 7.0f);
    TestType on(shape);
    on.run([&](auto& exec) {
      following_queries(queries.window, begin, keys.get(), first, last, local, apart ? positions.data() : nullptr,
                        table<float>{scores.data(), shape.kv_heads, last - first, stride}, exec);
    });
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (std::int64_t m = first; m < last; ++m) {
        double sum = 0;
        std::int64_t count = 0;
        std::int64_t const place = apart ? positions[static_cast<std::size_t>(m)] : m;
        for (std::int64_t t = place + 1; t <= place + local && t < begin + queries.window.tokens; ++t) {
          if (t < begin) continue;
          for (std::int64_t q = h * shape.group(); q < (h + 1) * shape.group(); ++q, ++count) {
            sum += keys.dot(queries.plain.data() + ((t - begin) * shape.q_heads + q) * shape.head_dim, h, m);
          }
        }
        double const want = count == 0 ? 0 : sum / static_cast<double>(count);
        double const got = scores[static_cast<std::size_t>(h * stride + m - first)];
        INFO("round " << round << " head " << h << " token " << m << " in " << first << ".." << last << " queries " << begin
                      << "+" << queries.window.tokens << " local " << local);
        if (count == 0) REQUIRE(got == 0);
        REQUIRE(std::abs(got - want) <= 2e-5 * 2 * static_cast<double>(shape.head_dim));
      }
      REQUIRE(scores[static_cast<std::size_t>(h * stride + last - first)] == 7.0f);
    }
  });
}

}  // namespace
}  // namespace kvpolicy_test
