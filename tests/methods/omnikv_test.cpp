#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/presets/omnikv.hpp"
#include "methods/naive_choice.hpp"

namespace kvpolicy_test::methods {
namespace {

/// The layer whose choice a layer reads, or -1 where it reads everything; from the groups' first layers.
std::int64_t chosen_by(ints const& leaders, std::int64_t whole, std::int64_t layer) {
  std::int64_t leader = -1;
  for (std::int64_t const l : leaders) leader = l <= layer ? l : leader;
  return leader < 0 || layer - leader < whole ? -1 : leader;
}

/// For each of the first `columns` tokens: the largest softmax weight that any query head of the layer pays to a token at most
/// `reach` away.
reals largest_weights(world const& w, std::int64_t l, std::int64_t query, std::int64_t columns, std::int64_t reach) {
  reals scores = filled(columns, 0.0);
  for (std::int64_t q = 0; q < w.shape.q_heads; ++q) {
    reals const weights = w.attention(l, query, q, range(0, columns));
    for (std::int64_t t = 0; t < columns; ++t) {
      for (std::int64_t near = std::max<std::int64_t>(0, t - reach); near <= std::min(columns - 1, t + reach); ++near)
        at(scores, t) = std::max(at(scores, t), at(weights, near));
    }
  }
  return scores;
}

TEST_CASE("omnikv: leaders read everything, and the layers behind them what a leader's heads attend to most", "[methods]") {
  in_worlds(2101, 500, 70, 7, [](world const& w, random_source& random, int round, tally& cases) {
    cache_shape const& shape = w.shape;
    presets::omnikv policy{.tokens = narrow(random.between(8, std::max<std::int64_t>(8, shape.max_tokens / 2))),
                           .sinks = narrow(random.between(0, 3)),
                           .recent = narrow(random.between(1, 4)),
                           .generated = random.one_in(2)};
    if (random.one_in(4)) policy.ratio = .25 * static_cast<double>(random.between(1, 3));
    std::int64_t const reach = random.between(0, 2);
    policy.smooth = reach == 0 ? smoothing{} : smoothing{.how = smoothing::kind::maximum, .width = 2 * reach + 1};
    ints leaders;
    policy.layers = {.dense_first = narrow(random.between(0, 2)), .whole = narrow(random.between(0, 2))};
    if (random.one_in(2)) {
      policy.layers.reuse = narrow(random.between(1, 3));
      for (std::int64_t l = policy.layers.dense_first; l < shape.layers; l += policy.layers.reuse) leaders.push_back(l);
    } else {
      ints named;
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        if (random.one_in(2)) named.push_back(l);
      }
      if (named.empty()) named.push_back(0);
      policy.layers.leaders = layer_set::of(named);
      for (std::int64_t const l : named) {
        if (l >= policy.layers.dense_first) leaders.push_back(l);
      }
    }
    std::int64_t const prompt = random.between(1, shape.max_tokens - 1);
    host_exec exec;
    auto state = start(policy, shape);
    for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(prompt), {l}, {}, exec);
    for (std::int64_t n = prompt + 1; n <= std::min(shape.max_tokens, prompt + 8); ++n) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        selection const kept = state.choose(w.view(n), {l}, w.step(l, n), exec);
        ints const got = tokens_of(kept.of({0}));
        std::int64_t const leader = chosen_by(leaders, policy.layers.whole, l);
        std::int64_t const behind = policy.generated ? prompt : std::max<std::int64_t>(0, n - policy.recent);
        std::int64_t const sinks = std::min<std::int64_t>(policy.sinks, behind);
        ints const forced = united(range(0, sinks), range(behind, n));
        std::int64_t room = policy.tokens;
        if (policy.ratio)
          room = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(n) * (1 - *policy.ratio)));
        room -= policy.generated ? sinks : size_of(forced);
        verdict v = got == range(0, n) ? verdict::same : verdict::different;
        ints const names = range(sinks, behind);
        if (leader >= 0) {
          reals scores = largest_weights(w, leader, n - 1, behind, reach);
          scores.erase(scores.begin(), scores.begin() + sinks);
          v = without(forced, got).empty() && ascends(got)
                  ? judge(without(got, forced), names, scores, std::clamp<std::int64_t>(room, 0, size_of(names)),
                          1e-5 * largest_size(scores))
                  : verdict::different;
        }
        INFO("round " << round << " prompt " << prompt << " tokens " << n << " layer " << l << " of " << shape.layers
                      << " leader " << leader << " whole " << policy.layers.whole << " budget " << policy.tokens << " ratio "
                      << policy.ratio.value_or(-1) << " reach " << reach << "\nread " << text(got));
        REQUIRE(v != verdict::different);
        cases.add(v);
      }
    }
  });
}

// Two layers, the first leads and reads everything. One head of one number; scale ln 2, query 1: a key k weighs 2^k.
// Keys of the prompt: 0 3 1 2, of layer 0. The step's own token is 4. One token of the prompt is read behind the leader: 1.
TEST_CASE("omnikv, worked by hand", "[methods]") {
  random_source random(2102);
  cache_shape const shape{2, 1, 1, 1, 6, element_type::f32};
  random_cache cache(shape, layout::head_major, 4, random);
  std::vector<float> const keys{0, 3, 1, 2, 5, 5};
  for (std::int64_t t = 0; t < 6; ++t) {
    cache.set_key(0, 0, t, 0, at(keys, t));
    cache.set_key(1, 0, t, 0, -at(keys, t));  // of layer 1: it is not asked
  }
  presets::omnikv const policy{.tokens = 1, .sinks = 0, .recent = 1, .smooth = {}, .layers = {.reuse = 2, .whole = 1}};
  host_exec exec;
  auto state = start(policy, shape);
  for (std::int64_t l = 0; l < 2; ++l) state.prefill(own_view{&cache, 4}, {l}, {}, exec);
  float const one = 1;
  float const minus = -1;
  auto const step = [&](std::int64_t n, float const& query) {
    std::vector<ints> read;
    for (std::int64_t l = 0; l < 2; ++l)
      read.push_back(tokens_of(state.choose(own_view{&cache, n}, {l}, {{&query, 1, 1, std::log(2.f)}}, exec).of({0})));
    return read;
  };
  REQUIRE(step(5, one) == std::vector<ints>{{0, 1, 2, 3, 4}, {1, 4}});
  REQUIRE(step(6, minus) == std::vector<ints>{{0, 1, 2, 3, 4, 5}, {0, 4, 5}});
}

}  // namespace
}  // namespace kvpolicy_test::methods
