#include "kvpolicy/budgets/tokens.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "kvpolicy/exec/host.hpp"

namespace kvpolicy {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr cache_shape shape{.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 8, .max_tokens = 100};

TEST_CASE("a budget of tokens must be at least 1", "[budget]") {
  REQUIRE_NOTHROW(budgets::tokens{1}.check(shape));
  REQUIRE_NOTHROW(budgets::tokens{100}.check(shape));
  REQUIRE_THROWS_WITH(budgets::tokens{0}.check(shape), ContainsSubstring("a budget of 0 tokens"));
  REQUIRE_THROWS_WITH(budgets::tokens{-5}.check(shape), ContainsSubstring("a budget of -5 tokens"));
}

TEST_CASE("a budget of tokens is what a list may keep", "[budget]") {
  REQUIRE(budgets::tokens{64}.most_tokens(shape) == 64);
  REQUIRE_FALSE(budgets::tokens{64}.relative());
}

budget_request of(std::int64_t tokens, std::int64_t layer = 0, std::int64_t recent = 0, cache_shape const& in = shape) {
  return {.shape = in, .layer = {layer}, .heads = {0, 1}, .tokens = tokens, .prompt = tokens, .recent = recent};
}

TEST_CASE("a budget above the context means all of it", "[budget]") {
  budgets::tokens const all{.count = 1000};
  REQUIRE_NOTHROW(all.check(shape));
  REQUIRE(all.most_tokens(shape) == 100);
  REQUIRE(all.of(of(30)) == 30);
  REQUIRE_THROWS_AS((budgets::tokens{.count = 0}.check(shape)), invalid_value);
}

TEST_CASE("a ratio says what is removed; what is left is rounded down and at least one token", "[budget]") {
  auto const kept = [](double ratio, std::int64_t n) { return budgets::tokens{.ratio = ratio}.of(of(n)); };
  REQUIRE(kept(.5, 100) == 50);
  REQUIRE(kept(.5, 99) == 49);
  REQUIRE(kept(.75, 10) == 2);
  REQUIRE(kept(0, 77) == 77);
  REQUIRE(kept(.999, 50) == 1);
  REQUIRE(kept(.5, 1) == 1);
  REQUIRE(budgets::tokens{.ratio = .5}.relative());
  REQUIRE(budgets::tokens{.ratio = .75}.most_tokens(shape) == 25);
  REQUIRE_NOTHROW((budgets::tokens{.count = 1000, .ratio = .5}.check(shape)));  // the count does not rule
  for (double const wrong : {1.0, -.1, 1.5}) REQUIRE_THROWS_AS((budgets::tokens{.ratio = wrong}.check(shape)), invalid_value);
}

TEST_CASE("a ratio is a share of every token that came, also of those whose rows are gone", "[budget]") {
  budget_request again = of(300);  // 100 of 200 tokens are gone, 200 more came
  again.gone = 100;
  REQUIRE(budgets::tokens{.ratio = .5}.of(again) == 200);
  REQUIRE(budgets::tokens{.ratio = .1}.of(again) == 300);  // it can't bring them back
  REQUIRE(budgets::tokens{.count = 64}.of(again) == 64);
}

// Five layers, mean 40 of 100 tokens, beta 4: the first gets 80 - 10 = 70, the last 40 / 4 = 10, steps of 15 between them.
TEST_CASE("a taper runs from twice the mean less the last layer's to the mean over the taper, in equal steps", "[budget]") {
  cache_shape const five{.layers = 5, .q_heads = 1, .kv_heads = 1, .head_dim = 8, .max_tokens = 100};
  for (auto const rule : {budgets::taper_rule::authors, budgets::taper_rule::kvpress}) {
    budgets::tokens const tapered{.count = 40, .taper = 4, .tapers = rule};
    std::int64_t total = 0;
    for (std::int64_t const want : {70, 55, 40, 25, 10}) {
      REQUIRE(tapered.of(of(100, (70 - want) / 15, 0, five)) == want);
      total += want;
    }
    REQUIRE(total == 5 * 40);
    REQUIRE(tapered.most_tokens(five) >= 70);
  }
}

// Beside a window of 64 there are 64 tokens a layer on the mean: 125 for the first, 125 // 17 = 7 fewer for each further one.
TEST_CASE("a window stays beside what PyramidKV's authors taper", "[budget]") {
  cache_shape const shape_of_18{.layers = 18, .q_heads = 1, .kv_heads = 1, .head_dim = 8, .max_tokens = 4096};
  budgets::tokens const tapered{.count = 128, .taper = 20};
  for (std::int64_t l = 0; l < 18; ++l) REQUIRE(tapered.of(of(4096, l, 64, shape_of_18)) == 189 - 7 * l);
  // The first layer would get more than there is: it gets all 136 beside the window, the last 128 - 136 + 64 and what rounds.
  budgets::tokens const wide{.count = 150, .taper = 20};
  REQUIRE(wide.of(of(200, 0, 64, shape_of_18)) == 200);
  REQUIRE(wide.of(of(200, 17, 64, shape_of_18)) == 200 - 17 * ((136 - 36) / 17));
  // Shorter than twice what is shared out: all layers alike.
  REQUIRE(wide.of(of(171, 0, 64, shape_of_18)) == 150);
  REQUIRE(wide.of(of(171, 17, 64, shape_of_18)) == 150);
  // Nothing is left beside the window.
  REQUIRE(budgets::tokens{.count = 64, .taper = 20}.of(of(4096, 0, 64, shape_of_18)) == 64);
}

TEST_CASE("kvpress tapers with the window as a part of each share", "[budget]") {
  cache_shape const five{.layers = 5, .q_heads = 1, .kv_heads = 1, .head_dim = 8, .max_tokens = 100};
  budgets::tokens const tapered{.count = 40, .taper = 4, .tapers = budgets::taper_rule::kvpress};
  // The last layer would get less than the window: all the same then.
  REQUIRE(tapered.of(of(100, 0, 11, five)) == 40);
  // The first layer would get more than there is beside the window: it gets that, and the last one the rest of the mean.
  REQUIRE(tapered.of(of(60, 0, 8, five)) == 52);
  REQUIRE(tapered.of(of(60, 4, 8, five)) == 28);
  REQUIRE_THROWS_AS((budgets::tokens{.count = 40, .taper = .5}.check(shape)), invalid_value);
  REQUIRE_THROWS_AS((budgets::tokens{.count = 40, .taper = -1}.check(shape)), invalid_value);
}

TEST_CASE("what a list gets beside protected tokens is counted in whole units", "[budget]") {
  host_exec exec;
  std::array<std::int32_t, 2> units{-1, -1};
  auto const allocated = [&](budgets::tokens const& budget, std::int64_t tokens, std::int64_t forced, std::int64_t unit) {
    budget_request request = of(tokens);
    request.forced = forced;
    request.unit_size = unit;
    budget.allocate(request, {}, units, exec);
    REQUIRE(units[0] == units[1]);
    return units[0];
  };
  REQUIRE(allocated({.count = 64}, 100, 20, 16) == 2);
  REQUIRE(allocated({.count = 64}, 100, 0, 16) == 4);
  REQUIRE(allocated({.count = 64}, 100, 64, 1) == 0);
  REQUIRE(allocated({.count = 64}, 100, 70, 1) == 0);
  // Of seven pages of 16, the last of them short, half: three, whatever is protected; at least one.
  REQUIRE(allocated({.ratio = .5, .of_units = true}, 100, 90, 16) == 3);
  REQUIRE(allocated({.ratio = .99, .of_units = true}, 100, 90, 16) == 1);
  REQUIRE(allocated({.count = 50, .of_units = true}, 100, 90, 16) == 3);
}

}  // namespace
}  // namespace kvpolicy
