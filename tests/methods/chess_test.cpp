#include <catch2/catch_test_macros.hpp>
#include <limits>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "methods/naive_chess.hpp"

namespace kvpolicy_test::methods {
namespace {

constexpr float never = std::numeric_limits<float>::infinity();

/// Entropy of a next-token distribution, in nats, and what a page's are: mean and variance within the page.
struct naive_uncertainty {
  reals entropies;

  void add(std::vector<float> const& logits) {
    reals weights;
    for (float const x : logits) weights.push_back(std::exp(static_cast<double>(x)));
    double const total = std::accumulate(weights.begin(), weights.end(), 0.0);
    double entropy = 0;
    for (double const x : weights) entropy -= x / total * std::log(x / total);
    entropies.push_back(entropy);
  }
  double mean() const {
    return std::accumulate(entropies.begin(), entropies.end(), 0.0) / static_cast<double>(entropies.size());
  }
  double variance() const {
    double sum = 0;
    for (double const e : entropies) sum += (e - mean()) * (e - mean());
    return sum / static_cast<double>(entropies.size());
  }
};

struct settings {
  std::array<std::int64_t, 3> percent;
  presets::chess policy;
};

void run_chess(settings const& given, bool draws_fractions, std::uint64_t seed, int rounds, tally& cases,
               std::int64_t& rebuilt) {
  random_source random(seed);
  for (int round = 0; round < rounds; ++round) {
    cache_shape shape = small_shape(random, 130, 3);
    shape.head_dim = random.between(1, 6);
    world const w(shape, random, round % 5 == 0 ? content::negative : content::plain);
    percents percent = given.percent;
    presets::chess policy = given.policy;
    policy.slides = policy.both = false;  // papers_test.cpp has them
    if (draws_fractions) {
      percent = {random.between(1, 100), random.between(1, 100), random.between(1, 100)};
      policy.fractions = {static_cast<float>(percent[0]) / 100, static_cast<float>(percent[1]) / 100,
                          static_cast<float>(percent[2]) / 100};
    }
    policy.units = {narrow(random.between(1, 8)), narrow(random.between(1, 4)), narrow(random.between(1, 4))};
    policy.sink_pages = narrow(random.between(0, 2));
    policy.recent_pages = narrow(random.between(1, 4));
    policy.depth = narrow(random.between(1, 3));
    bool const by_entropy = policy.entropy != never;
    if (by_entropy) {  // in the middle of what random logits give
      policy.entropy = 1.9f;
      policy.varentropy = random.one_in(2) ? .02f : 9.f;
    }
    if (random.one_in(2)) policy.every = narrow(random.between(1, 9));
    policy.pre_rope = random.one_in(2);
    policy.following = random.one_in(2);
    policy.rest = narrow(random.between(0, 12));
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    host_exec exec;
    auto state = start(policy, shape);
    for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
    cascade_choice choice;
    naive_uncertainty page;
    bool unsure = false;
    std::int64_t chosen_at = 0;
    for (std::int64_t n = prompt + 1; n <= std::min(shape.max_tokens, prompt + 25); ++n) {
      bool const uncertain = unsure && n - chosen_at >= policy.rest;
      if (n == prompt + 1 || uncertain || (policy.every > 0 && n - chosen_at >= policy.every)) {
        choice = naive_cascade(w, policy, percent, n - 1);
        chosen_at = n;
        rebuilt += n > prompt + 1 ? 1 : 0;
      }
      unsure = false;
      ints const want = chess_reading(choice, policy, chosen_at - 1, n);
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        selection const kept = state.choose(w.view(n), {l}, {}, exec);
        REQUIRE(kept.granularity() == scope::request);
        ints const got = tokens_of(kept.of({0}));
        INFO("round " << round << " prompt " << prompt << " tokens " << n << " layer " << l << " page " << policy.units.page
                      << " x " << policy.units.pages_per_chunk << " x " << policy.units.chunks_per_grid << " depth "
                      << policy.depth << " percent " << percent[0] << " " << percent[1] << " " << percent[2] << " every "
                      << policy.every << " chosen at " << chosen_at << "\nread " << text(got) << "\nwant " << text(want));
        bool const fits = got == want || choice.close;
        REQUIRE(fits);
        if (l == 0) cases.add(got == want ? verdict::same : verdict::excused);
      }
      if (!by_entropy) {
        state.observe({}, exec);
        continue;
      }
      std::vector<float> const logits = random.reals(8, random.one_in(2) ? .1f : 3.f);
      page.add(logits);
      state.observe({logits}, exec);
      if (n % policy.units.page == 0) {
        unsure = page.mean() > policy.entropy || page.variance() > policy.varentropy;
        page.entropies.clear();
      }
    }
  }
}

TEST_CASE("chess reads what the cascade says, at every depth, renewed by a fixed interval", "[methods]") {
  tally cases;
  std::int64_t rebuilt = 0;
  presets::chess const fixed = presets::chess::fixed_interval();
  REQUIRE(fixed.every == 192);
  run_chess({{50, 20, 10}, {.entropy = never, .varentropy = never, .standardised = false}}, true, 1701, 400, cases, rebuilt);
  cases.require();
  REQUIRE(rebuilt >= 500);
}

TEST_CASE("a standardised chess ranks pages by what sets them apart", "[methods]") {
  tally cases;
  std::int64_t rebuilt = 0;
  run_chess({{50, 20, 10}, {.entropy = never, .varentropy = never, .standardised = true}}, true, 1706, 400, cases, rebuilt);
  cases.require();
}

TEST_CASE("chess chooses anew behind a page of which the model was unsure", "[methods]") {
  tally cases;
  std::int64_t rebuilt = 0;
  run_chess({{50, 20, 10}, {.standardised = false}}, true, 1702, 400, cases, rebuilt);
  cases.require();
  REQUIRE(rebuilt >= 500);
}

TEST_CASE("chess's named settings keep the paper's fractions", "[methods]") {
  tally cases;
  std::int64_t rebuilt = 0;
  run_chess({{90, 90, 90}, presets::chess::conservative()}, false, 1703, 150, cases, rebuilt);
  run_chess({{80, 70, 70}, presets::chess::moderate()}, false, 1704, 150, cases, rebuilt);
  run_chess({{50, 20, 10}, presets::chess::aggressive()}, false, 1705, 150, cases, rebuilt);
  cases.require();
}

// Pages of 1 token, chunks of 2 pages, grids of 2 chunks, keys of one number, W 1: the anchor is the last known page, 1, which
// is read anyway and no candidate, and so is not its chunk.
//   pages   4 4 | 1 1 || 9 -9 | 2 2 || 3 3 | 1
//   chunks   4     1      0      2      3    1
// Half of every level. Depth 1: 5 of 10 pages: 9 4 4 3 3: tokens 0 1 4 8 9. Depth 2: 3 of 5 chunks: 4 3 2; 3 of their pages:
// 4 4 3: tokens 0 1 8. Depth 3 is in tests/presets/chess_test.cpp: tokens 0 and 1. Token 10 was the window when the choice was
// made, 11 is now.
TEST_CASE("chess without grids, and without chunks, worked by hand", "[methods]") {
  random_cache const cache = cache_with_keys({4, 4, 1, 1, 9, -9, 2, 2, 3, 3, 1, 50}, 1706);
  std::vector<ints> const want{{0, 1, 4, 8, 9, 10, 11}, {0, 1, 8, 10, 11}, {0, 1, 10, 11}};
  for (std::int32_t depth = 1; depth <= 3; ++depth) {
    presets::chess const policy{.fractions = {.5f, .5f, .5f},
                                .units = {1, 2, 2},
                                .sink_pages = 0,
                                .recent_pages = 1,
                                .depth = depth,
                                .pre_rope = false,
                                .standardised = false,
                                .following = false};
    host_exec exec;
    auto state = start(policy, cache.shape());
    state.prefill(own_view{&cache, 11}, {0}, {}, exec);
    REQUIRE(tokens_of(state.choose(own_view{&cache, 12}, {0}, {}, exec).of({0})) == at(want, depth - 1));
  }
}

/// The most and the fewest tokens that a step reads while a model is never unsure, the first 300 steps apart.
std::array<std::int64_t, 2> read_while_calm(presets::chess const& policy, std::int64_t steps) {
  random_source random(1391);
  cache_shape const shape{1, 1, 1, 4, 400 + steps, element_type::f32};
  world const w(shape, random);
  host_exec exec;
  auto state = start(policy, shape);
  state.prefill(w.view(400), {0}, w.prompt(0, 400), exec);
  std::array<std::int64_t, 2> found{0, shape.max_tokens};
  for (std::int64_t n = 401; n <= shape.max_tokens; ++n) {
    std::int64_t const read = state.choose(w.view(n), {0}, w.step(0, n), exec).tokens();
    state.observe({.entropy = .1f}, exec);
    if (n > 700) found = {std::max(found[0], read), std::min(found[1], read)};
  }
  return found;
}

TEST_CASE("what a calm model's steps read does not grow for 6,000 steps", "[methods]") {
  presets::chess policy{.fractions = {.tokens = 128}};
  policy.pre_rope = false;
  CHECK(read_while_calm(policy, 6000)[0] <= 128 + policy.every + policy.units.page);
  policy.every = 0;
  CHECK(read_while_calm(policy, 6000)[0] > 6000);
  presets::chess const paper = presets::chess::paper();
  auto const [most, least] = read_while_calm(paper, 6000);
  CHECK(most - least <= paper.units.page);
}

}  // namespace
}  // namespace kvpolicy_test::methods
