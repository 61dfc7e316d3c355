#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <iterator>
#include <map>
#include <string>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "methods/naive_heterocache.hpp"

namespace kvpolicy_test::methods {
namespace {

/// Roles as a calibration would give them, of every layer.
std::vector<head_profile> random_profile(cache_shape const& shape, random_source& random) {
  std::vector<head_profile> made;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    std::vector<float> stability;
    std::vector<float> overlaps(static_cast<std::size_t>(shape.kv_heads * shape.kv_heads));
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      stability.push_back(std::abs(random.real()));
      for (std::int64_t o = 0; o < h; ++o) {
        at(overlaps, h * shape.kv_heads + o) = at(overlaps, o * shape.kv_heads + h) = .3f + std::abs(random.real());
      }
    }
    std::vector<head_profile> const layer = naive_roles(stability, overlaps, .5f, .5f);
    made.insert(made.end(), layer.begin(), layer.end());
  }
  return made;
}

/// One request, and what every head of it should read.
struct request {
  world const& w;
  presets::heterocache const& policy;
  std::vector<head_profile> const& heads;
  std::int64_t prompt;
  naive_budget budget;
  std::vector<std::int64_t> lengths{};  ///< the library's, which head_profile_test.cpp looks at
  std::vector<naive_drift> drift{};     ///< of heads that are watched
  std::vector<ints> chosen{};           ///< prompt tokens that a head reads
  std::vector<bool> unsure{};           ///< a near-tie decided what the head reads
  std::int64_t fetches = 0;

  std::int64_t width() const { return policy.smooth.width; }
  std::int64_t index(std::int64_t l, std::int64_t h) const { return l * w.shape.kv_heads + h; }
  bool whole(std::int64_t i) const { return budget.whole[static_cast<std::size_t>(i)]; }
  bool largest() const { return policy.group == group_merge::maximum; }
  /// Section 4.3 watches pivots, which are whole; where that can't be paid for, whoever should be whole is watched.
  bool watched(std::int64_t i) const {
    head_role const role = at(heads, i).role;
    if (whole(i)) return role == head_role::pivot;
    return (role == head_role::pivot || role == head_role::shifting) && policy.watch == budgets::by_head_role::watched::all;
  }
  /// The head whose attention says when a head fetches, or -1.
  std::int64_t leader_of(std::int64_t l, std::int64_t h) const {
    head_profile const& head = at(heads, index(l, h));
    if (whole(index(l, h))) return -1;
    std::int64_t const of = head.role == head_role::satellite ? head.pivot : h;
    return watched(index(l, of)) ? of : -1;
  }

  /// The best tokens of a prompt's end: the last one, and others by its attention to the tokens before it.
  verdict at_prompt_end(ints const& got, std::int64_t l, std::int64_t h) const {
    if (got.empty() || got.back() != prompt - 1) return verdict::different;
    reals const scores = pooled_attention(w, l, h, prompt - 1, prompt, prompt - 1, width(), largest());
    return judge(without(got, {prompt - 1}), range(0, prompt - 1), scores, at(lengths, index(l, h)) - 1,
                 1e-5 * largest_size(scores));
  }
};

/// How heads are watched and fetched for.
struct setting {
  double full_share = 1;
  budgets::by_head_role::watched watch = budgets::by_head_role::watched::whole;
  bool corrected = false;
  bool own = false;
  group_merge group = group_merge::mean;
};

tally run_heterocache(std::uint64_t seed, int rounds, setting const& as, std::int64_t& fetches, std::int64_t& unread) {
  random_source random(seed);
  tally cases;
  for (int round = 0; round < rounds; ++round) {
    cache_shape shape = small_shape(random, 60, 2);
    shape.q_heads = shape.q_heads / shape.kv_heads;
    shape.kv_heads = random.between(2, 5);
    shape.q_heads *= shape.kv_heads;
    std::int64_t const prompt = random.between(12, 60);
    shape.max_tokens = prompt + 20;
    world const w(shape, random);
    std::vector<head_profile> const heads = random_profile(shape, random);
    std::int64_t const width = 1 + 2 * random.between(0, 3);
    presets::heterocache policy{.heads = heads,
                                .tokens = narrow(random.between(6, prompt)),
                                .full_share = as.full_share,
                                .watch = as.watch,
                                .own = as.own,
                                .window = narrow(1 + 2 * random.between(0, 3)),
                                .every = narrow(random.between(0, 3)),
                                .drift = .125f * static_cast<float>(random.between(1, 8)),
                                .group = as.group,
                                .chance_corrected = as.corrected,
                                .observe = 1,
                                .smooth = {smoothing::kind::average, width},
                                .monitor_smooth = static_cast<std::int32_t>(width),
                                .least = narrow(random.between(1, 6)),
                                .after = 0};
    policy.every += policy.window;
    if (random.one_in(4)) policy.ratio = static_cast<double>(random.between(1, 14)) / 16;
    request r{w, policy, heads, prompt,
              naive_lengths(heads, policy.tokens, policy.ratio, prompt, as.full_share, policy.floor, policy.least)};
    host_exec exec;
    auto state = start(policy, shape);
    if (r.budget.refused) {
      bool threw = false;
      try {
        for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
      } catch (invalid_value const&) {
        threw = true;
      }
      INFO("round " << round << " prompt " << prompt << " tokens " << policy.tokens);
      REQUIRE(threw);
      continue;
    }
    for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
    r.lengths.resize(heads.size());
    policy.parts().retain.budget.lengths(prompt, r.lengths);
    auto const where = [&](std::int64_t n, std::int64_t l, std::int64_t h) {
      std::string made = "round " + std::to_string(round) + " prompt " + std::to_string(prompt) + " tokens " +
                         std::to_string(n) + " layer " + std::to_string(l) + " head " + std::to_string(h) + " role " +
                         name_of(at(heads, r.index(l, h)).role) + " length " + std::to_string(at(r.lengths, r.index(l, h))) +
                         " base " + std::to_string(r.budget.base) + " W " + std::to_string(policy.window) + " width " +
                         std::to_string(r.width()) + " whole " + std::to_string(r.whole(r.index(l, h)));
      return made;
    };
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        ints const there = tokens_of(state.retained({l}).of({h}));
        bool const all = r.whole(r.index(l, h)) || r.leader_of(l, h) >= 0;
        verdict const v = !all ? r.at_prompt_end(there, l, h) : there == range(0, prompt) ? verdict::same : verdict::different;
        INFO(where(prompt, l, h) << "\nretained " << text(there));
        REQUIRE(v != verdict::different);
        cases.add(v);
        r.chosen.push_back(there);
        r.unsure.push_back(false);
        r.drift.emplace_back();
        if (r.watched(r.index(l, h))) {
          naive_drift& drift = r.drift.back();
          drift.baseline = drift.top(w, l, h, prompt - 1, prompt, r.budget.base, r.width(), r.largest());
        }
      }
    }
    for (std::int64_t n = prompt + 1; n <= prompt + 18; ++n) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        selection const kept = state.choose(w.view(n), {l}, w.step(l, n), exec);
        std::vector<bool> fired = filled(shape.kv_heads, false);
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          naive_drift& drift = at(r.drift, r.index(l, h));
          if (!r.watched(r.index(l, h))) continue;
          drift.sets.push_back(drift.top(w, l, h, n - 1, prompt, r.budget.base, r.width(), r.largest()));
          if ((n - prompt) % policy.every != 0) continue;
          drift.sets.erase(drift.sets.begin(), drift.sets.end() - policy.window);
          fired[static_cast<std::size_t>(h)] = drift.look(policy.drift, as.corrected, r.budget.base, prompt);
        }
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          ints const got = tokens_of(kept.of({h}));
          ints const of_prompt = without(got, range(prompt, n));
          ints& chosen = at(r.chosen, r.index(l, h));
          std::int64_t const leader = r.leader_of(l, h);
          bool const fetch = leader >= 0 && fired[static_cast<std::size_t>(leader)];
          bool const unsure = leader >= 0 && at(r.drift, r.index(l, leader)).close;
          INFO(where(n, l, h) << " fetch " << fetch << "\nread " << text(got) << "\nchosen " << text(chosen));
          REQUIRE(without(range(prompt, n), got).empty());
          verdict v = of_prompt == chosen ? verdict::same : verdict::different;
          if (leader >= 0 && n == prompt + 1 && !fetch) {
            v = r.at_prompt_end(of_prompt, l, h);
          } else if (fetch) {
            reals const scores = pooled_attention(w, l, as.own ? h : leader, n - 1, prompt, prompt, r.width(), r.largest());
            v = judge(of_prompt, range(0, prompt), scores, at(r.lengths, r.index(l, h)), 1e-5 * largest_size(scores));
            ++fetches;
          } else if (leader >= 0) {
            ++unread;
          }
          if (v == verdict::different && unsure) v = verdict::excused;
          REQUIRE(v != verdict::different);
          cases.add(v);
          chosen = of_prompt;
        }
      }
      state.observe({}, exec);
    }
  }
  return cases;
}

TEST_CASE("heterocache reads by role, and satellites fetch what their pivot attends to when that drifts", "[methods]") {
  std::int64_t fetches = 0;
  std::int64_t unread = 0;
  run_heterocache(1501, 220, {}, fetches, unread).require();
  REQUIRE(fetches >= 500);
  REQUIRE(unread >= 500);
}

TEST_CASE("heterocache's satellites can fetch by their own attention", "[methods]") {
  std::int64_t fetches = 0;
  std::int64_t unread = 0;
  run_heterocache(1506, 150, {.own = true}, fetches, unread).require();
  REQUIRE(fetches >= 300);
}

TEST_CASE("heterocache watches heads that are not whole, and they follow themselves", "[methods]") {
  for (bool const own : {false, true}) {
    std::int64_t fetches = 0;
    std::int64_t unread = 0;
    run_heterocache(1507, 120, {.full_share = .2, .watch = budgets::by_head_role::watched::all, .own = own}, fetches, unread)
        .require(3000);
    REQUIRE(fetches >= 1000);
    REQUIRE(unread >= 500);
  }
}

TEST_CASE("heterocache can merge a group by its largest", "[methods]") {
  std::int64_t fetches = 0;
  std::int64_t unread = 0;
  run_heterocache(1508, 120, {.full_share = .5, .watch = budgets::by_head_role::watched::all, .group = group_merge::maximum},
                  fetches, unread)
      .require(3000);
  REQUIRE(fetches >= 500);
}

TEST_CASE("heterocache compresses the least useful whole heads where they take more than their share", "[methods]") {
  std::int64_t fetches = 0;
  std::int64_t unread = 0;
  run_heterocache(1502, 120, {.full_share = .5}, fetches, unread).require();
  REQUIRE(fetches >= 200);
}

TEST_CASE("heterocache can take what overlaps by chance off", "[methods]") {
  std::int64_t fetches = 0;
  std::int64_t unread = 0;
  run_heterocache(1503, 150, {.corrected = true}, fetches, unread).require();
  REQUIRE(fetches >= 300);
}

// One layer, head 0 a satellite of head 1, W 1, no smoothing, 3 tokens a head in the mean: 2 x 3 - 4 = 2 for the satellite,
// L_base 2.
//   token               0   1   2   3 | generated ones: 0
//   key of head 0       0   2   1   3
//   key of head 1       2   1  -1  -2
// The prompt's last query is 1 for both: the baseline is {0, 1}; the satellite has 3, the last token, and 1, its best other
// one. Step 1, queries 1: {0, 1} again. Step 2, queries -1: {2, 3}, overlap 0: the satellite fetches these two, or its own best
// two, 0 and 2. Step 3, queries -1 and -1: the baseline is {2, 3} now, nothing is fetched. The pivot reads all.
TEST_CASE("heterocache, worked by hand", "[methods]") {
  random_source random(1504);
  cache_shape const shape{1, 2, 2, 1, 7, element_type::f32};
  random_cache cache(shape, layout::head_major, 4, random);
  std::vector<float> const satellite{0, 2, 1, 3, 0, 0, 0};
  std::vector<float> const pivot{2, 1, -1, -2, 0, 0, 0};
  for (std::int64_t t = 0; t < 7; ++t) {
    cache.set_key(0, 0, t, 0, at(satellite, t));
    cache.set_key(0, 1, t, 0, at(pivot, t));
  }
  std::vector<head_profile> const heads{{head_role::satellite, 1, .5f}, {head_role::pivot, -1, .5f}};
  for (bool const own : {false, true}) {
    presets::heterocache const policy{.heads = heads,
                                      .tokens = 3,
                                      .full_share = 1,
                                      .own = own,
                                      .window = 1,
                                      .every = 1,
                                      .observe = 1,
                                      .smooth = {},
                                      .monitor_smooth = 1,
                                      .least = 1,
                                      .after = 0};
    std::vector<float> const prompt(8, 1.f);
    host_exec exec;
    auto state = start(policy, shape);
    state.prefill(own_view{&cache, 4}, {0}, {.queries = {prompt.data(), 4, 2, 2, 1, 1.f}}, exec);
    auto const step = [&](std::int64_t n, float q) {
      std::vector<float> const queries{q, q};
      selection const kept = state.choose(own_view{&cache, n}, {0}, {queries.data(), 2, 1, 1.f}, exec);
      REQUIRE(tokens_of(kept.of({1})) == range(0, n));
      return tokens_of(kept.of({0}));
    };
    REQUIRE(step(5, 1) == ints{1, 3, 4});
    REQUIRE(step(6, -1) == (own ? ints{0, 2, 4, 5} : ints{2, 3, 4, 5}));
    REQUIRE(step(7, -1) == (own ? ints{0, 2, 4, 5, 6} : ints{2, 3, 4, 5, 6}));
    std::map<std::string, double> told_of;
    state.visit_statistics([&](statistic, char const* what, double value) { told_of[what] = value; });
    REQUIRE(told_of == std::map<std::string, double>{{"renewals", 1},
                                                     {"whole_heads", 1},
                                                     {"following_heads", 1},
                                                     {"fixed_heads", 0},
                                                     {"looks", 3},
                                                     {"drifts", 1},
                                                     {"fetches", 1}});
  }
}

// An answer that walks through the text: at step s the queries attend to tokens about 60 s. Roles as a profile of SmolLM2 has
// them: 24 pivots, 4 volatile heads, 41 satellites, 21 anchors of 90; 512 of 4,000 tokens, 64 steps.
TEST_CASE("heterocache's heads follow an answer that moves through the text", "[methods]") {
  constexpr std::int64_t prompt = 4000;
  cache_shape const shape{30, 3, 3, 4, prompt + 64, element_type::f32};
  random_source random(1509);
  random_cache cache(shape, layout::head_major, prompt + 64, random);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    for (std::int64_t h = 0; h < 3; ++h) {
      for (std::int64_t t = 0; t < prompt + 64; ++t) {  // a point of a circle, by place
        double const angle = 3.14 * static_cast<double>(t) / static_cast<double>(prompt);
        for (std::int64_t d = 0; d < 4; ++d) {
          cache.set_key(l, h, t, d, static_cast<float>(d == 0 ? 8 * std::cos(angle) : d == 1 ? 8 * std::sin(angle) : 0));
        }
      }
    }
  }
  std::vector<head_profile> heads;  // 24 layers of a pivot and one or two satellites, 6 of heads by themselves
  for (std::int64_t l = 0; l < 30; ++l) {
    bool const cluster = l < 24;
    head_role const third = l < 17 ? head_role::satellite : head_role::anchor;
    head_role const alone = l < 28 ? head_role::shifting : head_role::anchor;
    heads.push_back({cluster ? head_role::pivot : alone, -1, .4f});
    heads.push_back({cluster ? head_role::satellite : head_role::anchor, cluster ? 0 : -1, .4f});
    heads.push_back({third, third == head_role::satellite ? 0 : -1, .6f});
  }
  presets::heterocache const policy{.heads = heads, .tokens = 512, .after = 0};
  host_exec exec;
  auto state = start(policy, shape);
  auto const queries_at = [](double token) {
    double const angle = 3.14 * token / static_cast<double>(prompt);
    std::vector<float> made;
    for (int h = 0; h < 3; ++h) {
      made.insert(made.end(), {static_cast<float>(8 * std::cos(angle)), static_cast<float>(8 * std::sin(angle)), 0, 0});
    }
    return made;
  };
  std::vector<float> last;
  for (int i = 0; i < 8; ++i) std::ranges::copy(queries_at(0), std::back_inserter(last));
  for (std::int64_t l = 0; l < 30; ++l) {
    state.prefill(own_view{&cache, prompt}, {l}, {.queries = {last.data(), 8, 3, 12, 4, 1}}, exec);
  }
  std::vector<ints> first(heads.size());
  std::int64_t moved = 0;
  for (std::int64_t s = 1; s <= 64; ++s) {
    std::vector<float> const queries = queries_at(60. * static_cast<double>(s));
    for (std::int64_t l = 0; l < 30; ++l) {
      selection const kept = state.choose(own_view{&cache, prompt + s}, {l}, {queries.data(), 3, 4, 1}, exec);
      for (std::int64_t h = 0; h < 3; ++h) {
        ints const read = without(tokens_of(kept.of({h})), range(prompt, prompt + s));
        std::size_t const i = static_cast<std::size_t>(3 * l + h);
        if (s == 1) first[i] = read;
        if (s == 64) moved += heads[i].role == head_role::satellite && read != first[i] ? 1 : 0;
        // Behind by no more than what half of a set and a look let pass.
        if (s == 60 && heads[i].role != head_role::anchor) {
          INFO("layer " << l << " head " << h << " " << name_of(heads[i].role));
          auto const near = std::ranges::lower_bound(read, 60 * s - 400);
          REQUIRE(near != read.end());
          REQUIRE(*near <= 60 * s + 400);
        }
      }
    }
  }
  WARN(moved << " of 41 satellites read other tokens than at first");
  REQUIRE(moved >= 14);
  std::map<std::string, double> told_of;
  state.visit_statistics([&](statistic, char const* what, double value) { told_of[what] = value; });
  REQUIRE(told_of["following_heads"] >= 60);
  REQUIRE(told_of["fetches"] >= 41);
}

// The defaults on a chat's first message: 512 tokens a head, a prompt of 40. Nobody has a reason to leave anything out.
TEST_CASE("heterocache reads all of a prompt that is shorter than its budget", "[methods]") {
  random_source random(1505);
  for (int round = 0; round < 40; ++round) {
    cache_shape const shape{2, 8, 4, 4, 60, element_type::f32};
    world const w(shape, random);
    std::vector<head_profile> const heads = random_profile(shape, random);
    presets::heterocache const policy{.heads = heads, .after = 0};
    host_exec exec;
    auto state = start(policy, shape);
    for (std::int64_t l = 0; l < 2; ++l) state.prefill(w.view(40), {l}, w.prompt(l, 40), exec);
    for (std::int64_t n = 41; n <= 60; ++n) {
      for (std::int64_t l = 0; l < 2; ++l) {
        selection const kept = state.choose(w.view(n), {l}, w.step(l, n), exec);
        for (std::int64_t h = 0; h < 4; ++h) {
          INFO("round " << round << " tokens " << n << " layer " << l << " head " << h << " "
                        << name_of(at(heads, l * 4 + h).role));
          REQUIRE(tokens_of(kept.of({h})) == range(0, n));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvpolicy_test::methods
