#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/presets/twilight.hpp"
#include "methods/naive_quest.hpp"

namespace kvpolicy_test::methods {
namespace {

/// The fewest of `others` which, with `forced`, hold `mass` of a query head's attention to all of them; how near the last
/// decision was to the other one, and how near the lightest one taken is to the heaviest one left.
struct pruned {
  ints taken;
  double margin = 1;
};
pruned fewest(world const& w, std::int64_t l, std::int64_t q, std::int64_t query, ints const& forced, ints const& others,
              double mass) {
  ints const all = united(forced, others);
  reals const weights = w.attention(l, query, q, all);
  reals of_others;
  double held = 0;
  for (std::int64_t i = 0; i < size_of(all); ++i) {
    if (std::binary_search(forced.begin(), forced.end(), at(all, i))) held += at(weights, i);
    else of_others.push_back(at(weights, i));
  }
  pruned made;
  double last = 1;
  for (std::int64_t const i : ranked(of_others)) {
    made.margin = std::min(made.margin, std::abs(held - mass));
    if (held >= mass) {
      if (!made.taken.empty()) made.margin = std::min(made.margin, last - at(of_others, i));
      break;
    }
    made.taken.push_back(at(others, i));
    held += last = at(of_others, i);
  }
  std::sort(made.taken.begin(), made.taken.end());
  return made;
}

TEST_CASE("twilight reads of quest's pages the fewest tokens that hold a share of the attention", "[methods]") {
  random_source random(2201);
  tally cases;
  std::int64_t pruned_lists = 0;
  for (int round = 0; round < 700; ++round) {
    cache_shape const shape = small_shape(random, 70, 3);
    world const w(shape, random);
    presets::twilight policy;
    do {
      policy = {.tokens = narrow(random.between(1, shape.max_tokens)),
                .mass = random.one_in(8) ? 1 : .05 * static_cast<double>(random.between(1, 19)),
                .page = narrow(random.between(1, 9)),
                .sink_pages = narrow(random.between(0, 2)),
                .recent_pages = narrow(random.between(1, 2)),
                .metadata = pools::bounds::kind::range,
                .group = random.one_in(2) ? group_merge::mean : group_merge::maximum,
                .layers = {.dense_first = narrow(random.between(0, 1)), .reuse = narrow(random.between(1, 2))}};
      if (random.one_in(4)) policy.ratio = .25 * static_cast<double>(random.between(0, 3));
    } while (!allowed(policy, shape));
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    host_exec exec;
    auto state = start(policy, shape);
    // Quest with the same pages: which of them are looked at is quest's own test.
    presets::quest const pages{.tokens = policy.tokens,
                               .ratio = policy.ratio,
                               .page = policy.page,
                               .sink_pages = policy.sink_pages,
                               .recent_pages = policy.recent_pages,
                               .metadata = policy.metadata,
                               .group = policy.group,
                               .layers = policy.layers};
    auto quest = start(pages, shape);
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      state.prefill(w.view(prompt), {l}, {}, exec);
      quest.prefill(w.view(prompt), {l}, {}, exec);
    }
    for (std::int64_t n = prompt + 1; n <= std::min(shape.max_tokens, prompt + 6); ++n) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        selection const kept = state.choose(w.view(n), {l}, w.step(l, n), exec);
        selection const looked_at = quest.choose(w.view(n), {l}, w.step(l, n), exec);
        if (l < policy.layers.dense_first) {
          REQUIRE(tokens_of(kept.of({0})) == range(0, n));
          continue;
        }
        std::int64_t const leader = l - (l - policy.layers.dense_first) % policy.layers.reuse;
        ints const forced = plan_pages(n, policy.page, policy.sink_pages, policy.recent_pages, n).forced;
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          ints const others = without(tokens_of(looked_at.of({h})), forced);
          ints want = forced;
          double margin = 1;
          for (std::int64_t g = 0; g < w.group(); ++g) {
            pruned const one = fewest(w, leader, h * w.group() + g, n - 1, forced, others, policy.mass);
            want = united(want, one.taken);
            margin = std::min(margin, one.margin);
          }
          ints const got = tokens_of(kept.of({h}));
          INFO("round " << round << " tokens " << n << " layer " << l << " head " << h << " mass " << policy.mass << " page "
                        << policy.page << " margin " << margin << "\nlooked at " << text(others) << "\nread " << text(got)
                        << "\nwant " << text(want));
          verdict const v = got == want ? verdict::same : margin < 1e-5 ? verdict::excused : verdict::different;
          REQUIRE(v != verdict::different);
          cases.add(v);
          pruned_lists += size_of(got) < size_of(united(forced, others)) ? 1 : 0;
        }
      }
    }
  }
  REQUIRE(pruned_lists > cases.compared / 4);
  cases.require();
}

// One head of one number; scale ln 2, query 1: a key k weighs 2^k. Keys 0 3 1 2 0, pages of one token, all of them looked at.
// The step's own token, 4, weighs 1 of 1 + 8 + 2 + 4 + 1 = 16. For 9/16 token 1 suffices; for more, token 3 comes with it.
TEST_CASE("twilight, worked by hand", "[methods]") {
  random_cache const cache = cache_with_keys({0, 3, 1, 2, 0}, 2202);
  auto const read = [&](double mass) {
    presets::twilight const policy{.tokens = 5, .mass = mass, .page = 1, .sink_pages = 0};
    host_exec exec;
    auto state = start(policy, cache.shape());
    state.prefill(own_view{&cache, 4}, {0}, {}, exec);
    float const one = 1;
    return tokens_of(state.choose(own_view{&cache, 5}, {0}, {{&one, 1, 1, std::log(2.f)}}, exec).of({0}));
  };
  REQUIRE(read(1. / 16) == ints{4});
  REQUIRE(read(.56) == ints{1, 4});
  REQUIRE(read(.57) == ints{1, 3, 4});
  REQUIRE(read(.9) == ints{1, 2, 3, 4});
  REQUIRE(read(1) == ints{0, 1, 2, 3, 4});
}

}  // namespace
}  // namespace kvpolicy_test::methods
