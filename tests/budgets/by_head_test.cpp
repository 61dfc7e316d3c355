#include "kvpolicy/budgets/by_head.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <vector>

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr std::array<float, 6> retrieval{.1f, .9f, .2f, .2f, .7f, .4f};
constexpr cache_shape shape{.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 8, .max_tokens = 1000};

std::vector<std::size_t> streaming(budgets::by_head const& budget, std::int64_t tokens) {
  std::vector<std::size_t> made;
  for (std::size_t h = 0; h < retrieval.size(); ++h) {
    if (budget.streams(h, tokens)) made.push_back(h);
  }
  return made;
}

TEST_CASE("by_head: the share of the heads that retrieve least streams; ties go to the smaller index") {
  budgets::by_head budget{.retrieval = retrieval, .few = 10, .streaming = .5};
  CHECK(streaming(budget, 500) == std::vector<std::size_t>{0, 2, 3});
  budget.streaming = 2. / 6;
  CHECK(streaming(budget, 500) == std::vector<std::size_t>{0, 2});
  budget.streaming = 0;
  CHECK(streaming(budget, 500).empty());
  budget.streaming = 1;
  CHECK(streaming(budget, 500).size() == 6);
  budget.streaming = 2.5 / 6;  // half to even, as NumPy's round
  CHECK(streaming(budget, 500).size() == 2);
}

TEST_CASE("by_head: a mean of tokens says how many heads stream, as few as bring the mean down to it") {
  for (std::int32_t const mean : {10, 11, 100, 250, 499, 500, 900}) {
    budgets::by_head const budget{.retrieval = retrieval, .few = 10, .count = mean};
    for (std::int64_t const tokens : {1, 9, 10, 11, 12, 99, 100, 101, 500, 1000}) {
      CAPTURE(mean, tokens);
      std::int64_t sum = 0;
      for (std::int64_t h = 0; h < 6; ++h) sum += budget.of({shape, {h / 2}, {h % 2, 1}, tokens, tokens});
      std::int64_t const streams = budget.streaming_heads(tokens);
      CHECK(sum <= 6 * std::min<std::int64_t>(mean, tokens));
      if (streams > 0) CHECK(sum + tokens - 10 > 6 * mean);  // one head fewer would be too much
    }
  }
  CHECK(budgets::by_head{.retrieval = retrieval, .few = 10, .ratio = .5}.streaming_heads(1000) == 3);  // a share of the heads
  CHECK(budgets::by_head{.retrieval = retrieval, .few = 10, .ratio = 0}.streaming_heads(1000) == 0);
}

TEST_CASE("by_head: the longest list that is asked for counts, and of none the shortest there is") {
  budgets::by_head const budget{.retrieval = retrieval, .few = 10};
  CHECK(budget.of({shape, {0}, {0, 2}, 500, 500}) == 500);  // head 1 keeps all
  CHECK(budget.of({shape, {1}, {0, 2}, 500, 500}) == 10);
  CHECK(budget.of({shape, {1}, {0, 2}, 5, 5}) == 5);
  CHECK(budget.of({.shape = shape, .tokens = 500}) == 10);
}

TEST_CASE("by_head: scores of another model, no number or an impossible budget are refused") {
  CHECK_NOTHROW((budgets::by_head{.retrieval = retrieval}.check(shape)));
  CHECK_THROWS_WITH((budgets::by_head{}.check(shape)), ContainsSubstring("give DuoAttention's file"));
  CHECK_THROWS_WITH((budgets::by_head{.retrieval = std::span(retrieval).first(4)}.check(shape)),
                    ContainsSubstring("a file of 2 layers x 2 heads for a model of 3 x 2"));
  std::array<float, 6> broken = retrieval;
  broken[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS((budgets::by_head{.retrieval = broken}.check(shape)), invalid_value);
  CHECK_THROWS_AS((budgets::by_head{.retrieval = retrieval, .few = 0}.check(shape)), invalid_value);
  CHECK_THROWS_AS((budgets::by_head{.retrieval = retrieval, .streaming = 1.5}.check(shape)), invalid_value);
  CHECK_THROWS_AS((budgets::by_head{.retrieval = retrieval, .ratio = 1.0}.check(shape)), invalid_value);
  CHECK_THROWS_WITH((budgets::by_head{.retrieval = retrieval, .few = 80, .count = 79}.check(shape)),
                    ContainsSubstring("lower sinks and recent"));
}

}  // namespace
}  // namespace kvpolicy
