#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "kvpolicy/presets/rocketkv.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "methods/naive_quest.hpp"

namespace kvpolicy_test::methods {
namespace {

presets::rocketkv random_rocketkv(cache_shape const& shape, random_source& random) {
  presets::rocketkv policy;
  do {
    policy = {.tokens = narrow(random.between(1, shape.max_tokens)),
              .kept = narrow(random.between(1, shape.max_tokens)),
              .window = narrow(random.between(1, 6)),
              .smooth = {.how = smoothing::kind::maximum, .width = 1 + 2 * random.between(0, 3)},
              .page = narrow(random.between(1, 6)),
              .channels = narrow(random.between(0, shape.head_dim)),
              .recent_pages = narrow(random.between(1, 2)),
              .group = random.one_in(2) ? group_merge::mean : group_merge::maximum,
              .after = 0};
  } while (!allowed(policy, shape) || policy.tokens > shape.max_tokens);  // else all is read
  return policy;
}
template <class Request>
void prompt(Request& state, world const& w, std::int64_t first, std::int64_t tokens) {
  host_exec exec;
  for (std::int64_t l = 0; l < w.shape.layers; ++l) {
    prompt_signals said = w.prompt(l, tokens);
    said.first = first;
    said.token_ids = said.token_ids.subspan(static_cast<std::size_t>(first));
    state.prefill(w.view(tokens), {l}, said, exec);
  }
}
ints tokens_of_head(selection const& of, std::int64_t h) { return tokens_of(of.of({h})); }

/// A page's score by the channels in which the group's query heads are largest, alone.
double page_score(world const& w, presets::rocketkv const& p, std::int64_t l, std::int64_t h, ints const& page,
                  std::int64_t step) {
  std::int64_t const dim = w.shape.head_dim;
  reals sizes = filled(dim, 0.0);
  for (std::int64_t g = 0; g < w.group(); ++g) {
    for (std::int64_t d = 0; d < dim; ++d)
      at(sizes, d) += std::abs(static_cast<double>(w.query(l, step, h * w.group() + g)[d]));
  }
  ints const channels = best(range(0, dim), sizes, p.channels == 0 ? dim : p.channels);
  reals each;
  for (std::int64_t g = 0; g < w.group(); ++g) {
    double sum = 0;
    for (std::int64_t const d : channels) {
      auto const [low, high] = channel_bounds(w, l, h, d, page, false);
      double const q = w.query(l, step, h * w.group() + g)[d];
      sum += std::max(q * low, q * high);
    }
    each.push_back(sum);
  }
  if (p.group == group_merge::maximum) return *std::max_element(each.begin(), each.end());
  return std::accumulate(each.begin(), each.end(), 0.0) / static_cast<double>(each.size());
}

TEST_CASE("rocketkv ranks pages by the channels in which the query is largest", "[methods]") {
  random_source random(2501);
  tally cases;
  for (int round = 0; round < 420; ++round) {
    cache_shape const shape = small_shape(random, 70);
    world const w(shape, random);
    presets::rocketkv policy = random_rocketkv(shape, random);
    policy.kept = narrow(shape.max_tokens);  // so that pages are of everything
    std::int64_t const first = random.between(1, shape.max_tokens - 1);
    host_exec exec;
    auto state = start(policy, shape);
    prompt(state, w, 0, first);
    for (std::int64_t n = first + 1; n <= std::min(shape.max_tokens, first + 6); ++n) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        selection const kept = state.choose(w.view(n), {l}, w.step(l, n), exec);
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          page_plan const plan = plan_pages(n, policy.page, 0, policy.recent_pages, policy.tokens);
          reals scores;
          for (std::int64_t const u : plan.candidates)
            scores.push_back(page_score(w, policy, l, h, range(u * policy.page, u * policy.page + policy.page), n - 1));
          verdict const v = judge_pages(kept.of({h}), n, policy.page, plan, scores, 1e-5 * largest_size(scores));
          INFO("round " << round << " tokens " << n << " layer " << l << " head " << h << " page " << policy.page
                        << " channels " << policy.channels << " of " << shape.head_dim << "\nread "
                        << text(tokens_of_head(kept, h)));
          REQUIRE(v != verdict::different);
          cases.add(v);
        }
      }
    }
  }
  cases.require();
}

TEST_CASE("rocketkv reads of what snapkv would keep, drops nothing, and a later prompt chooses among everything", "[methods]") {
  random_source random(2502);
  int hidden = 0;
  int brought_back = 0;
  for (int round = 0; round < 300; ++round) {
    cache_shape const shape = small_shape(random, 90);
    world const w(shape, random);
    presets::rocketkv const policy = random_rocketkv(shape, random);
    std::int64_t const first = random.between(1, shape.max_tokens - 2);
    auto state = start(policy, shape);
    prompt(state, w, 0, first);
    presets::snapkv const snap{.tokens = policy.kept, .window = policy.window, .smooth = policy.smooth, .after = 0};
    auto const snapped = [&](std::int64_t tokens) {
      auto made = start(snap, shape);
      prompt(made, w, 0, tokens);
      return made;
    };
    auto const of_first = snapped(first);
    host_exec exec;
    std::int64_t n = first;
    for (; n < std::min(shape.max_tokens - 1, first + 5); ++n) {
      for (std::int64_t l = 0; l < shape.layers; ++l) {
        selection const kept = state.choose(w.view(n + 1), {l}, w.step(l, n + 1), exec);
        REQUIRE(tokens_of_head(state.retained({l}), 0) == range(0, n + 1));
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          ints const may = united(tokens_of_head(of_first.retained({l}), h), range(first, n + 1));
          REQUIRE(without(tokens_of_head(kept, h), may).empty());
          hidden += size_of(may) < n + 1 ? 1 : 0;
        }
      }
    }
    std::int64_t const second = random.between(n, shape.max_tokens - 1);
    prompt(state, w, n, second);
    auto fresh = start(policy, shape);
    prompt(fresh, w, 0, second);
    auto const of_second = snapped(second);
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      selection const kept = state.choose(w.view(second + 1), {l}, w.step(l, second + 1), exec);
      selection const same = fresh.choose(w.view(second + 1), {l}, w.step(l, second + 1), exec);
      REQUIRE(tokens_of_head(state.retained({l}), 0) == range(0, second + 1));
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        INFO("round " << round << " layer " << l << " head " << h << " turns " << first << " " << n << " " << second);
        REQUIRE(tokens_of_head(kept, h) == tokens_of_head(same, h));
        ints const before = tokens_of_head(of_first.retained({l}), h);
        brought_back +=
            without(without(tokens_of_head(of_second.retained({l}), h), before), range(first, second)).empty() ? 0 : 1;
      }
    }
  }
  REQUIRE(hidden > 300);
  REQUIRE(brought_back > 30);
}

TEST_CASE("a retain may hide without a retrieve", "[methods]") {
  random_source random(2503);
  cache_shape const shape{1, 2, 1, 4, 60, element_type::f32};
  world const w(shape, random);
  auto rule = presets::snapkv{.tokens = 12, .window = 4, .after = 0}.parts().retain;
  rule.trigger.hide = true;
  auto state = start(policy{rule, keep_all{}}, shape);
  prompt(state, w, 0, 40);
  host_exec exec;
  selection const kept = state.choose(w.view(41), {0}, w.step(0, 41), exec);
  REQUIRE(token_count(kept.of({0})) == 13);
  REQUIRE(tokens_of_head(state.retained({0}), 0) == range(0, 41));
}

}  // namespace
}  // namespace kvpolicy_test::methods
