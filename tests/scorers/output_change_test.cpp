#include "../../examples/own_policy/drop_kv.cpp"

#include <array>
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <random>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"

namespace kvpolicy {
namespace {

constexpr std::int64_t tokens = 9, window = 3, q_heads = 4, dim = 5;

/// Attention's output of a query over the tokens that it sees, but for one.
std::array<double, dim> output(float const* query, float const* keys, float const* values, std::int64_t seen,
                               std::int64_t without) {
  std::array<double, dim> sum{};
  double total = 0;
  for (std::int64_t t = 0; t < seen; ++t) {
    if (t == without) continue;
    double logit = 0;
    for (std::int64_t c = 0; c < dim; ++c) logit += static_cast<double>(query[c]) * static_cast<double>(keys[t * dim + c]);
    double const weight = std::exp(logit * .5);
    total += weight;
    for (std::int64_t c = 0; c < dim; ++c)
      sum[static_cast<std::size_t>(c)] += weight * static_cast<double>(values[t * dim + c]);
  }
  for (double& s : sum) s /= total;
  return sum;
}

TEST_CASE("DropKV's neighbourhood is odd", "[score]") {
  cache_shape const shape{1, 1, 1, 4, 64, element_type::f32};
  REQUIRE_THROWS_AS(check(drop_kv{.kernel = 2}.parts(), shape), invalid_value);
  REQUIRE_NOTHROW(check(drop_kv{.kernel = 3}.parts(), shape));
}

TEST_CASE("DropKV scores a token by what the outputs lose when it is dropped", "[score]") {
  std::mt19937 source(20);
  std::normal_distribution<float> normal;
  std::vector<float> keys(2 * tokens * dim), values(keys.size()), queries(window * q_heads * dim);
  for (std::vector<float>* const all : {&keys, &values, &queries})
    for (float& x : *all) x = normal(source);
  byte_strides const strides{.layer = 0, .head = tokens * dim * 4, .token = dim * 4, .dim = 4};
  auto const bytes = [](std::vector<float> const& of) { return reinterpret_cast<std::byte const*>(of.data()); };
  strided_view<> const view{{1, q_heads, 2, dim, 16, element_type::f32}, tokens, bytes(keys), bytes(values), strides, strides};
  pools::none::summaries nothing;
  no_memory memory;
  host_exec exec;
  prompt_signals const prompt{.queries = {queries.data(), window, q_heads, q_heads * dim, dim, .5f}};
  score_input<strided_view<>, pools::none::summaries, no_memory> const input{view,    {0},    {0, 2}, tokens, tokens,
                                                                             nothing, memory, {},     &prompt};
  std::vector<float> scores(2 * (tokens - window)), neighbours(scores.size());
  output_change{.window = window, .kernel = 1}.score(input, {scores.data(), 2, tokens - window, tokens - window}, exec);
  output_change{.window = window, .kernel = 3}.score(input, {neighbours.data(), 2, tokens - window, tokens - window}, exec);
  for (std::int64_t h = 0; h < 2; ++h) {
    float const* const k = keys.data() + h * tokens * dim;
    float const* const v = values.data() + h * tokens * dim;
    for (std::int64_t t = 0; t < tokens - window; ++t) {
      double lost = 0;
      for (std::int64_t q = 2 * h; q < 2 * h + 2; ++q) {
        for (std::int64_t w = 0; w < window; ++w) {
          float const* const query = queries.data() + (w * q_heads + q) * dim;
          std::int64_t const seen = tokens - window + w + 1;
          auto const with = output(query, k, v, seen, -1);
          auto const without = output(query, k, v, seen, t);
          for (std::size_t c = 0; c < with.size(); ++c) lost += std::pow(with[c] - without[c], 2);
        }
      }
      auto const at = static_cast<std::size_t>(h * (tokens - window) + t);
      REQUIRE(scores[at] == Catch::Approx(lost).epsilon(1e-5));
      float const before = t > 0 ? scores[at - 1] : 0, after = t + 1 < tokens - window ? scores[at + 1] : 0;
      REQUIRE(neighbours[at] == std::max({before, scores[at], after}));
    }
  }
  REQUIRE(scores[0] != scores[1]);

  for (std::int64_t c = 0; c < dim; ++c)
    keys[static_cast<std::size_t>(2 * dim + c)] = 1e4f * queries[static_cast<std::size_t>(c)];
  output_change{.window = window, .kernel = 1}.score(input, {scores.data(), 2, tokens - window, tokens - window}, exec);
  REQUIRE(scores[2] == HUGE_VALF);  // the first query sees this token alone
  REQUIRE(std::isfinite(scores[1]));
}

}  // namespace
}  // namespace kvpolicy
