#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/pools/unit_mean.hpp"
#include "kvpolicy/selectors/fill.hpp"
#include "methods/naive_sentencekv.hpp"

namespace kvpolicy_test::methods {
namespace {

/// Parameters that can be, for this shape; the boundary table stays the caller's.
presets::sentencekv random_sentencekv(cache_shape const& shape, std::vector<std::uint8_t> const& boundary,
                                      random_source& random) {
  std::int64_t const sinks = random.between(0, 3);
  std::int64_t const window = random.between(1, 5);
  presets::sentencekv made{
      .tokens = narrow(random.between(sinks + window, std::max(sinks + window, shape.max_tokens / 2))),
      .keep = .5 * static_cast<double>(random.between(2, 6)),
      .sinks = narrow(sinks),
      .window = narrow(window),
      .smooth = presets::sentencekv::code().smooth,
      .sentences = {.boundary = boundary, .longest = narrow(random.between(8, 20)), .shortest = narrow(random.between(1, 5))},
      .spread = random.one_in(2),
      .carry = random.one_in(2) ? 1.0f : static_cast<float>(random.between(0, 3)) / 4,
      .standing = random.one_in(2) ? 0 : static_cast<double>(random.between(1, 4)) / 4,
      .all_after_boundary = random.one_in(3),
      .layers = {.dense_first = narrow(random.between(0, 1))},
      .after = 0};
  return made;
}

std::vector<std::uint8_t> random_boundaries(std::int64_t vocabulary, random_source& random) {
  std::vector<std::uint8_t> made;
  for (std::int64_t i = 0; i < vocabulary; ++i) made.push_back(random.one_in(4) ? std::uint8_t{1} : std::uint8_t{0});
  made[static_cast<std::size_t>(random.between(0, vocabulary - 1))] = 1;
  return made;
}

struct two_tallies {
  tally retained;
  tally read;
};

two_tallies run_sentencekv(std::uint64_t seed, int rounds, bool relative) {
  random_source random(seed);
  two_tallies cases;
  for (int round = 0; round < rounds; ++round) {
    cache_shape shape = small_shape(random, 110, 2);
    shape.max_tokens += 24;
    world const w(shape, random);
    std::vector<std::uint8_t> const boundary = random_boundaries(10, random);  // ids 10 and 11 lie outside of it
    presets::sentencekv policy = random_sentencekv(shape, boundary, random);
    if (relative) policy.ratio = static_cast<double>(random.between(0, 15)) / 16;
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    host_exec exec;
    auto state = start(policy, shape);
    for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
    auto const where = [&](std::int64_t n, std::int64_t l, std::int64_t h) {
      return "round " + std::to_string(round) + " prompt " + std::to_string(prompt) + " tokens " + std::to_string(n) +
             " layer " + std::to_string(l) + " head " + std::to_string(h) + " tau " + std::to_string(policy.tokens) +
             " ratio " + std::to_string(policy.ratio.value_or(-1)) + " keep " + std::to_string(policy.keep) + " sinks " +
             std::to_string(policy.sinks) + " window " + std::to_string(policy.window) + " all " +
             std::to_string(policy.all_after_boundary);
    };
    std::vector<ints> retained;
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        ints const got = tokens_of(state.retained({l}).of({h}));
        verdict const v = judge_retained(got, w, policy, l, h, prompt);
        INFO(where(prompt, l, h) << " retained " << text(got));
        REQUIRE(v != verdict::different);
        cases.retained.add(v);
        retained.push_back(got);
      }
    }
    for (std::int64_t n = prompt + 1; n <= std::min(shape.max_tokens, prompt + 24); ++n) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        selection const kept = state.choose(w.view(n), {l}, w.step(l, n), exec);
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          ints const there = united(at(retained, l * shape.kv_heads + h), range(prompt, n));
          sentence_reading const want = read_sentences(w, l, h, n, prompt, there, policy);
          ints const got = tokens_of(kept.of({h}));
          INFO(where(n, l, h) << "\nsentences " << text(closed_sentences(w.ids, n, policy.sentences)) << "\nthere "
                              << text(there) << "\nread " << text(got) << "\nwant " << text(want.tokens));
          bool const fits = got == want.tokens || (want.close && got.size() == want.tokens.size());
          REQUIRE(fits);
          cases.read.add(got == want.tokens ? verdict::same : verdict::excused);
        }
      }
      state.observe({}, exec);
    }
  }
  return cases;
}

TEST_CASE("sentencekv reads what its paper says, step by step", "[methods]") {
  two_tallies const cases = run_sentencekv(1301, 300, false);
  cases.read.require();
  cases.retained.require(500);
}

TEST_CASE("sentencekv's budget can be a share of the sequence", "[methods]") {
  two_tallies const cases = run_sentencekv(1302, 300, true);
  cases.read.require();
  cases.retained.require(500);
}

TEST_CASE("what the prompt retains for sentencekv is the best of the whole prompt", "[methods]") {
  std::vector<std::uint8_t> const boundary{0, 1};
  in_worlds(1303, 1500, 70, 3, [&](world const& w, random_source& random, int round, tally& cases) {
    presets::sentencekv const policy = random_sentencekv(w.shape, boundary, random);
    std::int64_t const prompt = random.between(1, w.shape.max_tokens);
    host_exec exec;
    auto state = start(policy, w.shape);
    for (std::int64_t l = 0; l < w.shape.layers; ++l) {
      state.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
      for (std::int64_t h = 0; h < w.shape.kv_heads; ++h) {
        verdict const v = judge_retained(tokens_of(state.retained({l}).of({h})), w, policy, l, h, prompt);
        INFO("round " << round << " prompt " << prompt << " layer " << l << " head " << h);
        REQUIRE(v != verdict::different);
        cases.add(v);
      }
    }
  });
}

// Id 1 ends sentences, shortest 1; the prompt is of 9 tokens, all of which are retained (r is 10).
//   token   0  1  2 | 3  4 | 5  6  7 | 8          sentences [0, 3) [3, 5) [5, 8); token 8 is the open one's first
//   id      0  0  1 | 0  1 | 0  0  1 | 0
//   key     1  1  1 | 3  3 |-2 -2 -2 | 0
// No sinks, window 1, tau 4. Step 1 (token 9, query 1): buckets 1, 3, -2. Token 9 and the budget's other three tokens: 3 and 4
// of the best bucket, then 0 of the next, cut. And the open sentence: 8. Token 9's id is 1: it ends the sentence that it is in.
// Step 2 (token 10, query -4): the sentence [8, 10) is a bucket, and the mean query starts anew: -4, not (1 - 4)/2, though
// either ranks the same here. Keys of tokens 8 to 10 are 0: buckets -4, -12, 8, 0. Token 10, and 5, 6, 7. Step 3 (token 11,
// query 9): the mean is (-4 + 9)/2 = 2.5: buckets 2.5, 7.5, -5, 0. Token 11, 3, 4 and 0, and the open one's 10. As the authors'
// code does it, step 1, the first and a boundary, and step 2 behind it read all.
TEST_CASE("sentencekv, worked by hand", "[methods]") {
  random_cache const cache = cache_with_keys({1, 1, 1, 3, 3, -2, -2, -2, 0, 0, 0, 0}, 1304);
  std::vector<std::int32_t> const ids{0, 0, 1, 0, 1, 0, 0, 1, 0};
  std::vector<std::uint8_t> const boundary{0, 1};
  std::vector<float> const prompt(9, 0.f);
  for (bool const all : {false, true}) {
    presets::sentencekv const policy{.tokens = 4,
                                     .keep = 10,
                                     .sinks = 0,
                                     .window = 1,
                                     .sentences = {.boundary = boundary, .shortest = 1},
                                     .spread = false,
                                     .carry = 1,
                                     .standing = 0,
                                     .all_after_boundary = all,
                                     .after = 0};
    host_exec exec;
    auto state = start(policy, cache.shape());
    state.prefill(own_view{&cache, 9}, {0}, {.queries = {prompt.data(), 9, 1, 1, 1, 1.f}, .token_ids = ids}, exec);
    auto const step = [&](std::int64_t n, float q, std::int32_t id) {
      return tokens_of(state.choose(own_view{&cache, n}, {0}, {{&q, 1, 1, 1.f}, id}, exec).of({0}));
    };
    REQUIRE(step(10, 1, 1) == (all ? range(0, 10) : ints{0, 3, 4, 8, 9}));
    REQUIRE(step(11, -4, 0) == (all ? range(0, 11) : ints{5, 6, 7, 10}));
    REQUIRE(step(12, 9, 0) == ints{0, 3, 4, 10, 11});
  }
}

// The second piece's choice may keep tokens of a sentence that the first had dropped: its mean must take them in.
TEST_CASE("a prompt in two pieces is read as the prompt in one", "[methods]") {
  random_source random(61);
  std::int64_t compared = 0;
  for (int round = 0; round < 150; ++round) {
    cache_shape const shape{.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 4, .max_tokens = 70};
    world const w(shape, random);
    std::vector<std::uint8_t> const boundary{0, 1, 0, 1};
    presets::sentencekv policy{.tokens = 24, .keep = 1.5, .window = 4, .after = 0};
    policy.sentences.boundary = boundary;
    policy.sentences.shortest = 2;
    std::int64_t const n = random.between(30, 60);
    std::int64_t const cut = random.between(10, n - 5);
    host_exec exec;
    auto whole = start(policy, shape);
    auto pieces = start(policy, shape);
    auto const give = [&](auto& state, std::int64_t first, std::int64_t last) {
      std::int64_t const window = std::min<std::int64_t>(last - first, 4);
      prompt_signals told{.first = first, .queries = w.window(0, last - window, last)};
      told.token_ids = std::span(w.ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
      state.prefill(w.view(last), {0}, told, exec);
    };
    give(whole, 0, n);
    give(pieces, 0, cut);
    give(pieces, cut, n);
    for (std::int64_t t = n; t < n + 8; ++t) {
      step_signals const now{w.heads(0, t), at(w.ids, t)};
      selection const want = whole.choose(w.view(t + 1), {0}, now, exec);
      std::vector<ints> const lists{tokens_of(want.of({0})), tokens_of(want.of({1}))};
      selection const got = pieces.choose(w.view(t + 1), {0}, now, exec);
      INFO("round " << round << ": " << cut << " of " << n << ", token " << t);
      REQUIRE(tokens_of(got.of({0})) == lists[0]);
      REQUIRE(tokens_of(got.of({1})) == lists[1]);
      ++compared;
    }
  }
  REQUIRE(compared == 1200);
}

}  // namespace
}  // namespace kvpolicy_test::methods
