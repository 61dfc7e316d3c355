#include "kvpolicy/primitive/attend.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstring>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "primitive/inputs.hpp"

namespace kvpolicy_test {
namespace {

struct attended_rows {
  std::vector<float> out;
  std::vector<float> log_sum_exp;
};

/// The queries of a step's tokens, one after the other.
query_window window_of(std::vector<float> const& queries, cache_shape const& shape, float scale) {
  std::int64_t const row = shape.q_heads * shape.head_dim;
  return {queries.data(), std::ssize(queries) / row, shape.q_heads, row, shape.head_dim, scale};
}

/// Attends to the first n tokens; the step's are the last of them.
template <class On>
attended_rows attend_on(On& on, random_cache const& cache, query_window const& queries, selection const& kept, std::int64_t n,
                        attention_terms const& terms = {}) {
  cache_shape const& shape = cache.shape();
  std::int64_t const rows = queries.tokens * shape.q_heads;
  attended_rows made{std::vector<float>(static_cast<std::size_t>(rows * shape.head_dim)),
                     std::vector<float>(static_cast<std::size_t>(rows))};
  on.run([&](auto& exec) {
    table<float> const out{made.out.data(), rows, shape.head_dim, shape.head_dim};
    attend(queries, cache.keys(0, n), cache.values(0, n), kept, terms, out, made.log_sum_exp, exec);
  });
  return made;
}

/// A step's tokens: 1 as often as several.
std::int64_t drawn_tokens(std::int64_t n, random_source& random) {
  return random.one_in(2) ? 1 : random.between(1, std::min(n, most_step_tokens));
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
    std::int64_t const w = drawn_tokens(n, random);
    std::vector<float> const queries = random.reals(w * shape.q_heads * shape.head_dim, 2);
    scope const granularity = random.pick(std::array{scope::request, scope::layer, scope::head});
    std::vector<range_list> lists;
    for (std::int64_t i = 0; i < (granularity == scope::head ? shape.kv_heads : 1); ++i)
      lists.push_back(random_list(n, random));
    selection const kept(granularity, lists, shape.kv_heads);
    TestType on(shape);
    attended_rows const got = attend_on(on, cache, window_of(queries, shape, scale), kept, n);
    for (std::int64_t i = 0; i < w * shape.q_heads; ++i) {
      std::int64_t const h = i % shape.q_heads / shape.group();
      std::vector<std::int64_t> tokens;
      for (token_range const& range : lists[granularity == scope::head ? static_cast<std::size_t>(h) : 0]) {
        for (std::int64_t t = range.begin; t < range.end && t <= n - w + i / shape.q_heads; ++t) tokens.push_back(t);
      }
      naive::attended const want = naive::attend(cache, queries.data() + i * shape.head_dim, scale, 0, h, tokens);
      INFO("round " << round << " query " << i << " of " << w << " tokens, list of " << tokens.size());
      float const sum = got.log_sum_exp[static_cast<std::size_t>(i)];
      if (tokens.empty()) REQUIRE(sum == -std::numeric_limits<float>::infinity());
      else REQUIRE(std::abs(sum - want.log_sum_exp) < 2e-5);
      double worst = 0;
      for (std::size_t d = 0; d < want.out.size(); ++d) {
        worst = std::max(
            worst, std::abs(static_cast<double>(got.out[static_cast<std::size_t>(i * shape.head_dim) + d]) - want.out[d]));
      }
      REQUIRE(worst < 2e-5);
    }
  }
}

#if defined(KVPOLICY_TEST_SIMD)
// As latent attention has it (MLA): values are a part of the keys' rows.
TEST_CASE("attend takes values of another width, and values that are a part of the keys' rows", "[primitive]") {
  random_source random(32);
  for (int round = 0; round < 80; ++round) {
    cache_shape const shape = random_shape(random, 300);
    random_cache const cache = random_cache_of(shape, random);
    std::int64_t const n = shape.max_tokens;
    std::int64_t const block = elements_of_block(shape.type);
    std::int64_t const width = random.between(1, shape.head_dim / block) * block;
    std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim, 2);
    query_heads const step{queries.data(), shape.q_heads, shape.head_dim, .2f};
    std::vector<range_list> const lists{random_list(n, random)};
    selection const kept(scope::layer, lists, shape.kv_heads);
    bool const latent = random.one_in(2);
    rows const keys = cache.keys(0, n);
    rows values = latent ? keys : cache.values(0, n);
    auto const on = [&](auto exec, std::int64_t dim) {
      values.head_dim = dim;
      std::vector<float> out(static_cast<std::size_t>(shape.q_heads * dim), -7);
      table<float> const to{out.data(), shape.q_heads, dim, dim};
      // With equal widths keys and values must differ: the oracle alone takes them as they are.
      if (latent && dim == shape.head_dim) host::attend(query_window::of_one(step), keys, values, kept, {}, to, {});
      else attend(step, keys, values, kept, to, {}, exec);
      return out;
    };
    std::vector<float> const whole = on(host_exec{}, shape.head_dim);
    if (latent && width == shape.head_dim) continue;
    for (std::vector<float> const& part : {on(host_exec{}, width), on(simd_exec(shape), width)})
      for (std::int64_t q = 0; q < shape.q_heads; ++q)
        for (std::int64_t d = 0; d < width; ++d) {
          auto const at = [&](std::vector<float> const& of, std::int64_t row) {
            return of[static_cast<std::size_t>(q * row + d)];
          };
          REQUIRE(std::abs(at(part, width) - at(whole, shape.head_dim)) < 2e-5f);
        }
  }
}
#endif

TEMPLATE_TEST_CASE("attend caps logits, adds slopes, and counts sinks among the denominators", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(35);
  for (int round = 0; round < 60; ++round) {
    cache_shape const shape = random_shape(random, 200);
    random_cache const cache = random_cache_of(shape, random);
    std::int64_t const n = shape.max_tokens;
    std::int64_t const w = drawn_tokens(n, random);
    std::vector<float> const queries = random.reals(w * shape.q_heads * shape.head_dim, 2);
    std::vector<float> const slopes = random.reals(shape.q_heads, .05f);
    std::vector<float> const sinks = random.reals(shape.q_heads, 2);
    attention_terms const terms{.soft_cap = random.one_in(2) ? 1.5f : 0,
                                .slopes = random.one_in(2) ? slopes.data() : nullptr,
                                .sinks = random.one_in(2) ? sinks.data() : nullptr};
    std::vector<range_list> const lists{random_list(n, random)};
    float const scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
    TestType on(shape);
    attended_rows const got =
        attend_on(on, cache, window_of(queries, shape, scale), selection(scope::layer, lists, shape.kv_heads), n, terms);
    for (std::int64_t i = 0; i < w * shape.q_heads; ++i) {
      std::int64_t const q = i % shape.q_heads;
      std::int64_t const h = q / shape.group();
      std::int64_t const own = n - w + i / shape.q_heads;
      std::vector<double> logits;
      std::vector<std::int64_t> seen;
      for (token_range const& range : lists[0]) {
        for (std::int64_t t = range.begin; t < range.end && t <= own; ++t) {
          double logit = static_cast<double>(scale) * naive::dot(queries.data() + i * shape.head_dim, cache, 0, h, t);
          if (terms.soft_cap != 0) logit = 1.5 * std::tanh(logit / 1.5);
          if (terms.slopes != nullptr)
            logit -= static_cast<double>(slopes[static_cast<std::size_t>(q)]) * static_cast<double>(own - t);
          logits.push_back(logit);
          seen.push_back(t);
        }
      }
      if (terms.sinks != nullptr) logits.push_back(sinks[static_cast<std::size_t>(q)]);
      double total = 0;
      for (double const logit : logits) total += std::exp(logit);
      INFO("round " << round << " query " << i << " of " << w << " tokens");
      if (total > 0) REQUIRE(std::abs(got.log_sum_exp[static_cast<std::size_t>(i)] - std::log(total)) < 2e-5);
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        double want = 0;
        for (std::size_t t = 0; t < seen.size(); ++t)
          want += std::exp(logits[t]) / total * static_cast<double>(cache.value(0, h, seen[t], d));
        REQUIRE(std::abs(static_cast<double>(got.out[static_cast<std::size_t>(i * shape.head_dim + d)]) - want) < 1e-4);
      }
    }
  }
}

TEST_CASE("attend refuses a step of no token, of too many, or of more than there are rows", "[primitive]") {
  random_source random(38);
  cache_shape const shape{1, 2, 1, 8, 20, element_type::f32};
  random_cache const cache(shape, layout::token_major, 16, random);
  std::vector<float> const queries(17 * 16);
  std::vector<range_list> const lists{{{0, 20, reason::scored}}};
  std::vector<float> out(queries.size());
  host_exec exec;
  for (auto const& [w, n] : {std::pair{0, 20}, {17, 20}, {4, 3}}) {
    query_window const window{queries.data(), w, 2, 16, 8, 1};
    REQUIRE_THROWS_AS(attend(window, cache.keys(0, n), cache.values(0, n), selection(scope::layer, lists, 1),
                             table<float>{out.data(), w * 2, 8, 8}, {}, exec),
                      invalid_value);
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
    attend(query_heads{queries.data(), 3, 20, 1}, cache.keys(0, 300), cache.values(0, 300), selection(scope::layer, lists, 1),
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
    attended_rows const want =
        attend_on(on, cache, window_of(queries, shape, .3f), selection(granularity, lists, shape.kv_heads), n);
    std::vector<float> got(want.out.size());
    on.run([&](auto& exec) {
      rows keys = cache.keys(0, n);
      rows values = cache.values(0, n);
      keys.indices = values.indices = ranks.data();
      keys.index_stride = values.index_stride = each ? n : 0;
      attend(query_heads{queries.data(), shape.q_heads, shape.head_dim, .3f}, keys, values,
             selection(granularity, by_index, shape.kv_heads),
             table<float>{got.data(), shape.q_heads, shape.head_dim, shape.head_dim}, {}, exec);
    });
    for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - want.out[i]) < 1e-6f);
  }
}

#if defined(KVPOLICY_TEST_SIMD)
TEMPLATE_TEST_CASE("a token's attention has the same bits whether a step brings it alone or with others", "[primitive]",
                   KVPOLICY_TEST_CPU_EXECUTORS) {
  random_source random(36);
  for (int round = 0; round < 60; ++round) {
    cache_shape const shape = random_shape(random, round % 4 == 0 ? 2500 : 120);
    random_cache cache = random_cache_of(shape, random);
    std::int64_t const n = shape.max_tokens;
    std::int64_t const w = random.between(1, std::min(n, most_step_tokens));
    std::vector<float> const queries = random.reals(w * shape.q_heads * shape.head_dim, 2);
    query_window const window = window_of(queries, shape, .3f);
    bool const each = random.one_in(2);
    std::vector<range_list> lists;
    for (std::int64_t i = 0; i < (each ? shape.kv_heads : 1); ++i) lists.push_back(random_list(n, random));
    std::vector<float> const slopes = random.reals(shape.q_heads, .05f);
    attention_terms const terms{.soft_cap = random.one_in(2) ? 2.0f : 0, .slopes = random.one_in(2) ? slopes.data() : nullptr};
    scope const granularity = each ? scope::head : scope::layer;
    TestType on(shape);
    attended_rows const together = attend_on(on, cache, window, selection(granularity, lists, shape.kv_heads), n, terms);
    for (std::int64_t i = w - 1; i >= 0; --i) {
      std::vector<range_list> seen = lists;
      for (range_list& list : seen) truncate(list, n - w + i + 1);
      query_window one = window;
      one.data = window.at(i, 0);
      one.tokens = 1;
      attended_rows const alone = attend_on(on, cache, one, selection(granularity, seen, shape.kv_heads), n - w + i + 1, terms);
      INFO("round " << round << " token " << i << " of " << w);
      std::size_t const size = alone.out.size();
      REQUIRE(std::memcmp(alone.out.data(), together.out.data() + static_cast<std::size_t>(i) * size, size * sizeof(float)) ==
              0);
      REQUIRE(std::memcmp(alone.log_sum_exp.data(), together.log_sum_exp.data() + i * shape.q_heads,
                          alone.log_sum_exp.size() * sizeof(float)) == 0);
    }
  }
}

TEMPLATE_TEST_CASE("rows behind a token's own have no influence on it, even if they hold a NaN", "[primitive]", on_host,
                   on_simd, on_team) {
  random_source random(37);
  cache_shape const shape{1, 6, 2, 40, 90, element_type::f32};
  random_cache cache(shape, layout::token_major, 16, random);
  for (std::int64_t h = 0; h < 2; ++h) {
    cache.set_key(0, h, 89, 3, std::numeric_limits<float>::quiet_NaN());
    cache.set_value(0, h, 89, 3, std::numeric_limits<float>::quiet_NaN());
  }
  std::vector<float> const queries = random.reals(5 * 6 * 40, 2);
  std::vector<range_list> const lists{{{0, 90, reason::scored}}};
  TestType on(shape);
  attended_rows const got = attend_on(on, cache, window_of(queries, shape, .2f), selection(scope::layer, lists, 2), 90);
  for (std::size_t i = 0; i < got.out.size(); ++i) REQUIRE(std::isnan(got.out[i]) == (i >= 4 * 6 * 40));
}

TEST_CASE("attend gives the same bits whether one thread worked or two", "[primitive]") {
  random_source random(33);
  for (int round = 0; round < 40; ++round) {
    cache_shape const shape = random_shape(random, 2500);
    random_cache const cache = random_cache_of(shape, random);
    std::vector<float> const queries = random.reals(drawn_tokens(shape.max_tokens, random) * shape.q_heads * shape.head_dim, 2);
    std::vector<range_list> const lists{random_list(shape.max_tokens, random)};
    selection const kept(scope::layer, lists, shape.kv_heads);
    on_simd alone(shape);
    on_team together(shape);
    attended_rows const one = attend_on(alone, cache, window_of(queries, shape, .3f), kept, shape.max_tokens);
    attended_rows const two = attend_on(together, cache, window_of(queries, shape, .3f), kept, shape.max_tokens);
    REQUIRE(std::memcmp(one.out.data(), two.out.data(), one.out.size() * sizeof(float)) == 0);
    REQUIRE(one.log_sum_exp == two.log_sum_exp);
  }
}
#endif

}  // namespace
}  // namespace kvpolicy_test
