#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "methods/naive_eviction.hpp"

namespace kvpolicy_test::methods {
namespace {

constexpr std::int64_t steps = 14;

TEST_CASE("h2o accumulates attention over what is kept and evicts after each step's attention", "[methods]") {
  in_worlds(1601, 250, 60, 2, [](world const& w, random_source& random, int round, tally& cases) {
    cache_shape const& shape = w.shape;
    bool const mean = random.one_in(3);
    presets::h2o policy{
        .tokens = narrow(random.between(1, shape.max_tokens)),
        .recent_share = .25 * static_cast<double>(random.between(0, 4)),
        .reduce = mean ? scorers::accumulated_attention::reduction::mean : scorers::accumulated_attention::reduction::sum,
        .queries = random.one_in(3) ? narrow(random.between(1, 12)) : all_queries,
        .layers = {.dense_first = narrow(random.between(0, 1))}};
    if (random.one_in(2)) policy.recent_share = .5;
    policy.keep_prompt = random.one_in(4);
    if (random.one_in(5)) policy.ratio = .125 * static_cast<double>(random.between(1, 7));
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    host_exec exec;
    auto state = start(policy, shape);
    for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);

    std::vector<ints> there;             // what each list holds before a step
    std::vector<accumulated> attention;  // naive sums
    auto const look = [&](std::int64_t l, std::int64_t h, ints const& got, ints const& from, std::int64_t n) {
      std::int64_t const keep = kept_of(policy.tokens, policy.ratio, n);
      auto const recent = static_cast<std::int64_t>(policy.recent_share * static_cast<double>(keep));
      reals scores = at(attention, l * shape.kv_heads + h).of(from, mean);
      std::int64_t const pinned = policy.keep_prompt ? std::min(prompt, size_of(from)) : 0;
      verdict const v = l < policy.layers.dense_first ? (got == from ? verdict::same : verdict::different)
                                                      : judge_left(got, from, keep, recent, scores, pinned);
      INFO("round " << round << " prompt " << prompt << " after " << n << " layer " << l << " head " << h << " tokens "
                    << policy.tokens << " ratio " << policy.ratio.value_or(-1) << " share " << policy.recent_share << " mean "
                    << mean << " queries " << policy.queries << "\nfrom " << text(from) << "\nleft " << text(got) << "\nwant "
                    << text(best(from, scores, keep)));
      REQUIRE(v != verdict::different);
      cases.add(v);
    };
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        attention.emplace_back(shape.max_tokens);
        for (std::int64_t t = std::max<std::int64_t>(0, prompt - policy.queries); t < prompt; ++t) {
          attention.back().add(w, l, h, t, range(0, t + 1));
        }
        ints const got = tokens_of(state.retained({l}).of({h}));
        look(l, h, got, range(0, prompt), prompt);
        there.push_back(got);
      }
    }
    // What a step evicted shows at the next one: what it reads, without its own token.
    for (std::int64_t n = prompt + 1; n <= std::min(shape.max_tokens, prompt + steps); ++n) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        selection const kept = state.choose(w.view(n), {l}, w.step(l, n), exec);
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          ints const got = tokens_of(kept.of({h}));
          REQUIRE(got.back() == n - 1);
          ints& list = at(there, l * shape.kv_heads + h);
          ints const left = without(got, {n - 1});
          if (n > prompt + 1) look(l, h, left, list, n - 1);
          else REQUIRE(left == list);
          at(attention, l * shape.kv_heads + h).add(w, l, h, n - 1, got);
          list = got;
        }
      }
      state.observe({}, exec);
    }
  });
}

TEST_CASE("tova keeps one set a layer, by the mean over all its heads' last attention", "[methods]") {
  in_worlds(1602, 450, 60, 3, [](world const& w, random_source& random, int round, tally& cases) {
    cache_shape const& shape = w.shape;
    presets::tova policy{.tokens = narrow(random.between(1, shape.max_tokens)),
                         .layers = {.dense_first = narrow(random.between(0, 1))}};
    if (random.one_in(5)) policy.ratio = .125 * static_cast<double>(random.between(1, 7));
    policy.keep_prompt = random.one_in(4);
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    host_exec exec;
    auto state = start(policy, shape);
    for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
    auto const look = [&](std::int64_t l, ints const& got, ints const& from, std::int64_t n) {
      reals scores = filled(size_of(from), 0.0);
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        reals const one = w.group_attention(l, n - 1, h, from);
        for (std::size_t i = 0; i < scores.size(); ++i) scores[i] += one[i] / static_cast<double>(shape.kv_heads);
      }
      verdict const v = l < policy.layers.dense_first
                            ? (got == from ? verdict::same : verdict::different)
                            : judge_left(got, from, kept_of(policy.tokens, policy.ratio, n), 1, scores,
                                         policy.keep_prompt ? std::min(prompt, size_of(from)) : 0);
      INFO("round " << round << " prompt " << prompt << " after " << n << " layer " << l << " tokens " << policy.tokens
                    << "\nfrom " << text(from) << "\nleft " << text(got));
      REQUIRE(v != verdict::different);
      cases.add(v);
    };
    std::vector<ints> there;
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      there.push_back(tokens_of(state.retained({l}).of({0})));
      look(l, there.back(), range(0, prompt), prompt);
    }
    for (std::int64_t n = prompt + 1; n <= std::min(shape.max_tokens, prompt + steps); ++n) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        selection const kept = state.choose(w.view(n), {l}, w.step(l, n), exec);
        REQUIRE(kept.granularity() == scope::layer);
        ints const got = tokens_of(kept.of({0}));
        REQUIRE(got.back() == n - 1);
        if (n > prompt + 1) look(l, without(got, {n - 1}), at(there, l), n - 1);
        else REQUIRE(without(got, {n - 1}) == at(there, l));
        at(there, l) = got;
      }
    }
  });
}

/// Calls look(tokens, layer, selection) at each step of a policy that needs no signals.
template <class Policy, class Look>
void without_signals(Policy const& policy, world const& w, std::int64_t prompt, Look look) {
  host_exec exec;
  auto state = start(policy, w.shape);
  for (std::int64_t l = 0; l < w.shape.layers; ++l) state.prefill(w.view(prompt), {l}, {}, exec);
  for (std::int64_t n = prompt + 1; n <= std::min(w.shape.max_tokens, prompt + steps); ++n) {
    for (std::int64_t l = 0; l < w.shape.layers; ++l) look(n, l, state.choose(w.view(n), {l}, {}, exec));
  }
}

TEST_CASE("streaming_llm reads the sinks and the most recent tokens, exactly its budget", "[methods]") {
  in_worlds(1603, 600, 60, 2, [](world const& w, random_source& random, int round, tally& cases) {
    cache_shape const& shape = w.shape;
    auto const tokens = narrow(random.between(1, shape.max_tokens));
    presets::streaming_llm policy{
        .tokens = tokens, .sinks = narrow(random.between(0, std::min(6, tokens - 1))), .keep_prompt = random.one_in(4)};
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    without_signals(policy, w, prompt, [&](std::int64_t n, std::int64_t, selection const& kept) {
      ints const got = tokens_of(kept.of({0}));
      ints want;
      std::int64_t const first = policy.keep_prompt ? prompt : policy.sinks;
      std::int64_t const last =
          policy.keep_prompt ? policy.tokens - std::max<std::int64_t>(0, policy.sinks - prompt) : policy.tokens - policy.sinks;
      for (std::int64_t t = 0; t < n; ++t) {
        if (t < std::max<std::int64_t>(first, policy.sinks) || t >= n - last) want.push_back(t);
      }
      INFO("round " << round << " tokens " << n << " budget " << tokens << " sinks " << policy.sinks << " read " << text(got));
      REQUIRE(got == want);
      REQUIRE(size_of(got) == std::min<std::int64_t>(n, tokens + (policy.keep_prompt ? prompt : 0)));
      cases.add(verdict::same);
    });
  });
}

TEST_CASE("duoattention: heads that retrieve least read the sinks and the most recent tokens, the others everything",
          "[methods]") {
  in_worlds(1606, 600, 60, 2, [](world const& w, random_source& random, int round, tally& cases) {
    cache_shape const& shape = w.shape;
    std::int64_t const heads = shape.layers * shape.kv_heads;
    std::vector<float> retrieval;
    for (std::int64_t h = 0; h < heads; ++h) retrieval.push_back(static_cast<float>(random.between(0, 4)) / 4);
    presets::duoattention policy{.retrieval = retrieval,
                                 .tokens = 0,
                                 .streaming = .25 * static_cast<double>(random.between(0, 4)),
                                 .sinks = narrow(random.between(0, 3)),
                                 .recent = narrow(random.between(2, 6))};
    std::int64_t const few = policy.sinks + policy.recent;
    if (random.one_in(2)) policy.tokens = narrow(random.between(few, 60));
    if (policy.tokens > shape.max_tokens) policy.tokens = 0;
    // The heads by falling retrieval, of equal ones the larger index first: as many as may keep everything.
    ints order = range(0, heads);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return at(retrieval, a) != at(retrieval, b) ? at(retrieval, a) > at(retrieval, b) : a > b;
    });
    auto const keeps_all = [&](std::int64_t head, std::int64_t n) {
      std::int64_t whole = heads - static_cast<std::int64_t>(std::nearbyint(static_cast<double>(heads) * policy.streaming));
      if (policy.tokens > 0) {
        whole = heads;
        while (whole > 0 && whole * n + (heads - whole) * std::min(few, n) > policy.tokens * heads) --whole;
      }
      return std::find(order.begin(), order.begin() + whole, head) != order.begin() + whole;
    };
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    without_signals(policy, w, prompt, [&](std::int64_t n, std::int64_t l, selection const& kept) {
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        bool const whole = keeps_all(l * shape.kv_heads + h, n);
        ints want;
        for (std::int64_t t = 0; t < n; ++t) {
          if (whole || t < policy.sinks || t >= n - policy.recent) want.push_back(t);
        }
        ints const got = tokens_of(kept.of({h}));
        INFO("round " << round << " prompt " << prompt << " tokens " << n << " budget " << policy.tokens << " streaming "
                      << policy.streaming << " sinks " << policy.sinks << " recent " << policy.recent << " layer " << l
                      << " head " << h << " whole " << whole << "\nread " << text(got));
        REQUIRE(got == want);
        cases.add(verdict::same);
      }
    });
  });
}

/// What each step behind a prompt of four tokens reads.
template <class Policy>
void require_steps(Policy const& policy, std::uint64_t seed, std::vector<ints> const& want) {
  random_cache const cache = cache_with_keys({0, 2, 1, 0, 3, 0, 0}, seed);
  std::vector<float> const queries{0, 0, 0, 1, 1, 0, 0};
  float const scale = std::log(2.f);
  host_exec exec;
  auto state = start(policy, cache.shape());
  state.prefill(own_view{&cache, 4}, {0}, {.queries = {queries.data(), 4, 1, 1, 1, scale}}, exec);
  for (std::int64_t n = 5; n < 5 + size_of(want); ++n) {
    selection const kept = state.choose(own_view{&cache, n}, {0}, {queries.data() + n - 1, 1, 1, scale}, exec);
    REQUIRE(tokens_of(kept.of({0})) == at(want, n - 5));
  }
}

// One head, keys and queries of one number; with scale ln 2 and query 1 a key k weighs 2^k, with query 0 all weigh the same.
// The prompt is of 4 tokens, keys 0 2 1 0, queries 0 0 0 1; two tokens are kept, one of them recent.
//   query 0:  1                      sums  1
//   query 1:  1/2 1/2                      3/2    1/2
//   query 2:  1/3 1/3 1/3                  11/6   5/6    1/3
//   query 3:  (1 4 2 1) / 8                47/24  32/24  14/24  3/24
// Recent: 3. Of the others token 0 stays: {0, 3}. Step 1 (token 4, key 3, query 1) reads 0 3 4, which weigh 1 1 8, of 10: sums
// 2.058, .225, .8. After it, 4 is recent, and 0 beats 3, which this step still read. Step 2 (token 5, key 0, query 0) reads 0 4
// 5, each 1/3: sums 2.39, 1.13, .33; 5 is recent, 0 stays: step 3 reads 0 5 6.
TEST_CASE("h2o, worked by hand", "[methods]") {
  require_steps(presets::h2o{.tokens = 2}, 1604, {{0, 3, 4}, {0, 4, 5}, {0, 5, 6}});
}

// The same cache, two tokens kept. The prompt's last query weighs (1 4 2 1) / 8: 1 stays, and 3, the last. Step 1 (key 3, query
// 1) reads 1 3 4, which weigh 4 1 8: 3 goes. Step 2 (query 0) weighs 1 4 5 the same: the smaller index stays, 1. Step 3: 1 5 6.
TEST_CASE("tova, worked by hand", "[methods]") {
  require_steps(presets::tova{.tokens = 2}, 1605, {{1, 3, 4}, {1, 4, 5}, {1, 5, 6}});
}

}  // namespace
}  // namespace kvpolicy_test::methods
