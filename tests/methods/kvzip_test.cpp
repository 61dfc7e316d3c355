#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/presets/kvzip.hpp"
#include "kvpolicy/scorers/recent_attention.hpp"
#include "kvpolicy/triggers/every_step.hpp"
#include "methods/naive_choice.hpp"

namespace kvpolicy_test::methods {
namespace {

/// One piece of a repetition: which tokens it repeats, how many tokens it has, and the token from which its queries are taken.
struct piece {
  token_span of;
  std::int64_t tokens = 0;
  std::int64_t queries = 0;
};

/// A request that has seen so many tokens.
auto prompted(presets::kvzip const& policy, world const& w, std::int64_t tokens) {
  host_exec exec;
  auto state = start(policy, w.shape);
  for (std::int64_t l = 0; l < w.shape.layers; ++l) state.prefill(w.view(tokens), {l}, {}, exec);
  return state;
}

/// Decodes a piece behind the first `context` tokens.
template <class Request>
void repeat(Request& state, world const& w, std::int64_t context, piece const& p) {
  host_exec exec;
  for (std::int64_t l = 0; l < w.shape.layers; ++l) {
    state.prefill(w.view(context + p.tokens), {l},
                  {.first = context, .queries = w.window(l, p.queries, p.queries + p.tokens), .repeats = p.of}, exec);
  }
}

/// The largest weight that a query of the piece, of any query head of the group, gives a token of the text. It attends to the
/// first tokens, to what it repeats, and to the piece up to itself.
double largest_weight(world const& w, presets::kvzip const& policy, std::int64_t context, piece const& p, std::int64_t l,
                      std::int64_t h, std::int64_t token) {
  double most = 0;
  for (std::int64_t i = 0; i < p.tokens; ++i) {
    ints const seen = united(united(range(0, std::min<std::int64_t>(policy.sinks, p.of.begin)), range(p.of.begin, p.of.end)),
                             range(context, context + i + 1));
    auto const where = std::ranges::find(seen, token) - seen.begin();
    for (std::int64_t g = 0; g < w.group(); ++g)
      most = std::max(most, at(w.attention(l, p.queries + i, h * w.group() + g, seen), where));
  }
  return most;
}

std::vector<piece> random_pieces(world const& w, std::int64_t begin, std::int64_t context, random_source& random) {
  std::vector<piece> made;
  for (std::int64_t at = begin; at < context;) {
    std::int64_t const end = random.between(at + 1, context);
    std::int64_t const tokens = random.between(1, w.shape.max_tokens - context);
    made.push_back({{at, end}, tokens, random.between(0, w.shape.max_tokens - tokens)});
    at = end;
  }
  return made;
}

TEST_CASE("kvzip: the tokens of all heads and layers that a repetition attends to most", "[methods]") {
  in_worlds(2601, 6000, 28, 3, [](world const& w, random_source& random, int round, tally& cases) {
    cache_shape const& shape = w.shape;
    std::int64_t const context = random.between(2, shape.max_tokens - 2);
    std::int64_t const begin = random.one_in(3) ? random.between(0, context - 1) : 0;  // a system prompt before the text
    std::int64_t const text = context - begin;
    presets::kvzip policy{.sinks = narrow(random.between(0, 3)), .recent = narrow(random.between(0, 2))};
    policy.tokens = narrow(random.between(policy.sinks + policy.recent + 1, shape.max_tokens));
    if (policy.tokens > shape.max_tokens) return;
    if (random.one_in(4)) policy.ratio = .25 * static_cast<double>(random.between(0, 3));
    std::vector<piece> const pieces = random_pieces(w, begin, context, random);
    host_exec exec;
    auto state = prompted(policy, w, context);
    for (piece const& p : pieces) {
      REQUIRE(tokens_of(state.retained({0}).of({0})) == range(0, state.tokens()));  // until the last piece came
      repeat(state, w, context, p);
    }
    std::int64_t each = policy.tokens;
    if (policy.ratio) {
      each = *policy.ratio == 0
                 ? text
                 : std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(text) * (1 - *policy.ratio)));
    }
    each = std::min(each, text);
    std::int64_t const sinks =
        std::min(each, std::clamp<std::int64_t>(policy.sinks, begin, std::max(begin, context - policy.recent)) - begin);
    std::int64_t const recent = std::min({each - sinks, std::int64_t{policy.recent}, text - sinks});
    ints const forced = united(range(begin, begin + sinks), range(context - recent, context));
    ints const free = without(range(begin, context), forced);
    ints names;  // token + context * (layer * heads + head), so that ties go to the lower layer, head and token
    reals scores;
    ints got;
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        for (std::int64_t const t : free) {
          auto const p = std::ranges::find_if(pieces, [&](piece const& one) { return one.of.begin <= t && t < one.of.end; });
          names.push_back(t + context * (l * shape.kv_heads + h));
          scores.push_back(largest_weight(w, policy, context, *p, l, h, t));
        }
        ints const kept = tokens_of(state.retained({l}).of({h}));
        ints const always = united(united(range(0, begin), forced), range(context, state.tokens()));
        REQUIRE(without(always, kept).empty());
        for (std::int64_t const t : without(kept, always)) got.push_back(t + context * (l * shape.kv_heads + h));
      }
    }
    std::int64_t const room = std::min(each - size_of(forced), size_of(free));
    verdict const v = judge(got, names, scores, room * shape.layers * shape.kv_heads, 1e-5 * largest_size(scores));
    INFO("round " << round << " text " << begin << ".." << context << " pieces " << pieces.size() << " budget " << each
                  << " layers " << shape.layers << " heads " << shape.kv_heads);
    REQUIRE(v != verdict::different);
    cases.add(v);

    // The repetition is gone and questions follow: what was chosen stays, and so does every later token.
    std::vector<range_list> before;
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        before.push_back(range_list(state.retained({l}).of({h}).begin(), state.retained({l}).of({h}).end()));
        truncate(before.back(), context);
      }
    }
    for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(context + 1), {l}, {.first = context}, exec);
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      selection const read = state.choose(w.view(context + 2), {l}, {}, exec);
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        REQUIRE(tokens_of(read.of({h})) ==
                united(tokens_of(before[static_cast<std::size_t>(l * shape.kv_heads + h)]), range(context, context + 2)));
      }
    }
  });
}

// Two layers, one head of one number; scale ln 2, query 1: a key k weighs 2^k. The text's keys are 0 1 in layer 0 and 3 2 in
// layer 1, the repetition's one token has the key 0. So the weights are 1/4 and 2/4, and 8/13 and 4/13. Two of four tokens
// stay.
TEST_CASE("kvzip, worked by hand", "[methods]") {
  random_source random(2602);
  cache_shape const shape{2, 1, 1, 1, 4, element_type::f32};
  random_cache cache(shape, layout::head_major, 4, random);
  std::vector<float> const keys{0, 1, 0, 3, 2, 0};
  for (std::int64_t t = 0; t < 6; ++t) cache.set_key(t / 3, 0, t % 3, 0, at(keys, t));
  auto state = start(presets::kvzip{.tokens = 1, .sinks = 0}, shape);
  host_exec exec;
  float const one = 1;
  for (std::int64_t l = 0; l < 2; ++l) state.prefill(own_view{&cache, 2}, {l}, {}, exec);
  for (std::int64_t l = 0; l < 2; ++l)
    state.prefill(own_view{&cache, 3}, {l}, {.first = 2, .queries = {&one, 1, 1, 1, 1, std::log(2.f)}, .repeats = {0, 2}},
                  exec);
  REQUIRE(tokens_of(state.retained({0}).of({0})) == ints{1, 2});
  REQUIRE(tokens_of(state.retained({1}).of({0})) == ints{0, 2});
}

TEST_CASE("a repetition that can't be one is refused, and nothing has changed", "[methods]") {
  random_source random(2603);
  world const w({2, 4, 2, 8, 40, element_type::f32}, random);
  host_exec exec;
  auto state = prompted(presets::kvzip{.tokens = 8}, w, 20);
  auto const given = [&](token_span of, std::int64_t queries) {
    return prompt_signals{.first = 20, .queries = w.window(0, 0, queries), .repeats = of};
  };
  for (token_span const of : {token_span{0, 21}, token_span{-1, 4}, token_span{5, 4}})
    REQUIRE_THROWS_AS(state.prefill(w.view(25), {0}, given(of, 5), exec), invalid_value);
  REQUIRE_THROWS_AS(state.prefill(w.view(25), {0}, given({0, 10}, 4), exec), invalid_value);
  REQUIRE_THROWS_AS(state.prefill(w.view(25), {0}, {.first = 20, .repeats = {0, 10}}, exec), unsupported);
  repeat(state, w, 20, {{0, 10}, 5, 0});
  REQUIRE_THROWS_AS(state.prefill(w.view(25), {0}, given({12, 20}, 5), exec), invalid_value);  // tokens 10 and 11 are left out
  REQUIRE(tokens_of(state.retained({0}).of({0})) == range(0, 20));                             // the refused piece is not there
  repeat(state, w, 20, {{10, 20}, 5, 0});
  REQUIRE(tokens_of(state.retained({0}).of({0})).size() + tokens_of(state.retained({0}).of({1})).size() +
              tokens_of(state.retained({1}).of({0})).size() + tokens_of(state.retained({1}).of({1})).size() ==
          4 * (8 + 5));
}

TEST_CASE("pieces of a repetition that was not completed are forgotten when something else follows", "[methods]") {
  random_source random(2605);
  world const w({2, 4, 2, 8, 60, element_type::f32}, random);
  host_exec exec;
  auto state = prompted(presets::kvzip{.tokens = 6, .sinks = 0}, w, 20);
  repeat(state, w, 20, {{0, 10}, 5, 0});
  for (std::int64_t l = 0; l < 2; ++l) static_cast<void>(state.choose(w.view(21), {l}, {}, exec));
  repeat(state, w, 21, {{15, 21}, 5, 0});                           // no gap: it is the first piece of another text
  REQUIRE(tokens_of(state.retained({1}).of({1})) == range(0, 26));  // six of six tokens, and what came before them
  REQUIRE_THROWS_AS(start(policy{keep{segments::tokens{}, pools::none{}, scorers::repetition_attention{-1}, budgets::global{},
                                      selectors::top{}, windows::tokens{}, triggers::prefill{}},
                                 keep_all{}},
                          w.shape),
                    invalid_value);
  keep const observing{segments::tokens{},           pools::none{},    scorers::recent_attention{.window = 4},
                       budgets::tokens{.count = 20}, selectors::top{}, windows::tokens{.recent = 4},
                       triggers::every_step{}};
  REQUIRE_THROWS_AS(start(policy{presets::kvzip{.tokens = 12}.parts().retain, observing}, w.shape), unsupported);
}

TEST_CASE("a second text is compressed behind the first, whose choice stays", "[methods]") {
  random_source random(2604);
  world const w({2, 4, 2, 8, 60, element_type::f32}, random);
  host_exec exec;
  auto state = prompted(presets::kvzip{.tokens = 6, .sinks = 2}, w, 20);
  repeat(state, w, 20, {{0, 20}, 20, 0});
  ints const first = tokens_of(state.retained({1}).of({1}));
  for (std::int64_t l = 0; l < 2; ++l) state.prefill(w.view(40), {l}, {.first = 20}, exec);
  repeat(state, w, 40, {{25, 40}, 15, 3});  // behind a question of five tokens
  ints const second = tokens_of(state.retained({1}).of({1}));
  REQUIRE(without(first, range(20, 40)) == ints(second.begin(), second.begin() + size_of(without(first, range(20, 40)))));
  REQUIRE(without(range(20, 25), second).empty());
  std::int64_t of_text = 0;
  for (std::int64_t i = 0; i < 4; ++i) {
    ints const list = tokens_of(state.retained({i / 2}).of({i % 2}));
    of_text += std::ranges::count_if(list, [](std::int64_t t) { return t >= 25 && t < 40; });
  }
  REQUIRE(of_text == 4 * 6);
}

}  // namespace
}  // namespace kvpolicy_test::methods
