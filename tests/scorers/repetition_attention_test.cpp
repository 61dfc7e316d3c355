#include "kvpolicy/scorers/repetition_attention.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "conformance/random_cache.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/pools/none.hpp"
#include "kvpolicy/segments/tokens.hpp"

namespace kvpolicy_test {
namespace {

constexpr cache_shape shape{1, 2, 1, 1, 4, element_type::f32};

/// A sink, a text of two tokens, and a piece of one token. With scale ln 2 and query 1 a key k weighs 2^k.
random_cache four_keys() {
  random_source random(2701);
  random_cache cache(shape, layout::head_major, 4, random);
  std::vector<float> const keys{2, 0, 1, 0};
  for (std::int64_t t = 0; t < 4; ++t) cache.set_key(0, 0, t, 0, keys[static_cast<std::size_t>(t)]);
  return cache;
}

struct heard {
  std::array<float, 3> scores{};
  token_span repeated;
  bool complete = false;
};
heard after(std::int32_t sinks, std::vector<token_span> const& pieces, std::array<float, 2> const& queries) {
  random_cache const cache = four_keys();
  scorers::repetition_attention const score{sinks};
  auto memory = score.start(shape);
  auto summaries = pools::none{}.start(shape, segments::tokens{});
  host_exec exec;
  own_view const view{&cache, 4};
  heard made;
  for (token_span const& piece : pieces) {
    prompt_signals const said{.first = 3, .queries = {queries.data(), 1, 2, 2, 1, std::log(2.f)}, .repeats = piece};
    score_input<own_view, decltype(summaries), decltype(memory)> const input{view,      {0},    {0, 1}, 4,    3,
                                                                             summaries, memory, {},     &said};
    score.hear(input, exec);
    score.score(input, table<float>{made.scores.data(), 1, 3, 3}, exec);
  }
  made.repeated = memory.repeated;
  made.complete = memory.complete;
  return made;
}
bool near(float a, double b) { return std::abs(static_cast<double>(a) - b) < 1e-6; }

TEST_CASE("a repeated token's score is its softmax weight over the sinks, the text and the piece", "[score]") {
  heard const with_sink = after(1, {{1, 3}}, {1, 1});  // of 4 + 1 + 2 + 1
  REQUIRE(near(with_sink.scores[1], 1 / 8.));
  REQUIRE(near(with_sink.scores[2], 2 / 8.));
  heard const without = after(0, {{1, 3}}, {1, 1});  // of 1 + 2 + 1
  REQUIRE(near(without.scores[1], 1 / 4.));
  REQUIRE(near(without.scores[2], 2 / 4.));
}

TEST_CASE("the query head that weighs a token most counts", "[score]") {
  heard const both = after(1, {{1, 3}}, {1, -1});  // the second head: of 1/4 + 1 + 1/2 + 1
  REQUIRE(near(both.scores[1], 1 / 2.75));
  REQUIRE(near(both.scores[2], 2 / 8.));
}

TEST_CASE("pieces follow each other, and the one that ends the text completes the repetition", "[score]") {
  heard const first = after(1, {{1, 2}}, {1, 1});  // of 4 + 1 + 1
  REQUIRE(near(first.scores[1], 1 / 6.));
  REQUIRE_FALSE(first.complete);
  heard const all = after(1, {{1, 2}, {2, 3}}, {1, 1});  // of 4 + 2 + 1
  REQUIRE(near(all.scores[1], 1 / 6.));
  REQUIRE(near(all.scores[2], 2 / 7.));
  REQUIRE(all.complete);
  REQUIRE((all.repeated.begin == 1 && all.repeated.end == 3));
  REQUIRE_THROWS_AS(after(1, {{0, 1}, {2, 3}}, {1, 1}), invalid_value);  // token 1 is left out
  REQUIRE_THROWS_AS(after(1, {{0, 2}, {1, 3}}, {1, 1}), invalid_value);  // token 1 comes twice, token 0 would be forgotten
  REQUIRE(after(1, {{1, 2}, {0, 3}}, {1, 1}).repeated.begin == 0);       // begins anew
}

}  // namespace
}  // namespace kvpolicy_test
