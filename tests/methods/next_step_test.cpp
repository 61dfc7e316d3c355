#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <vector>

#include "conformance/small_presets.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/policy.hpp"
#include "methods/naive_world.hpp"

namespace kvpolicy_test::methods {
namespace {

using Catch::Matchers::ContainsSubstring;

ints tokens_in(selection const& all, std::int64_t head) {
  ints made;
  for (token_range const& range : all.of({head})) {
    for (std::int64_t t = range.begin; t < range.end; ++t) made.push_back(t);
  }
  return made;
}

/// The same text under both orders: what a step chooses is read by itself, or by the step after.
template <class Preset>
std::int64_t changed_lists(Preset preset, std::uint64_t seed) {
  random_source random(seed);
  cache_shape const shape{3, 4, 2, 8, 140, element_type::f32};
  world const w(shape, random);
  host_exec exec;
  auto now = start(preset, shape);
  preset.next_step = true;
  auto later = start(preset, shape);
  constexpr std::int64_t prompt = 100;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    now.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
    later.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
  }
  std::int64_t changed = 0;
  std::vector<ints> before(static_cast<std::size_t>(shape.layers * shape.kv_heads));
  for (std::int64_t n = prompt + 1; n <= shape.max_tokens; ++n) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      selection const same = now.choose(w.view(n), {l}, w.step(l, n), exec);
      selection const kept = later.choose(w.view(n), {l}, w.step(l, n), exec);
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        INFO("step " << n << " layer " << l << " head " << h);
        ints& last = at(before, l * shape.kv_heads + h);
        ints const chosen = tokens_in(same, h);
        REQUIRE(tokens_in(later.ahead({l}), h) == chosen);
        if (n > prompt + 1) {
          last.push_back(n - 1);
          REQUIRE(tokens_in(kept, h) == last);
          changed += last != chosen ? 1 : 0;
        }
        last = chosen;
      }
    }
  }
  return changed;
}

TEST_CASE("with next_step a step reads what the step before chose, and its own token", "[methods]") {
  CHECK(changed_lists(small(presets::quest{}), 2701) > 50);
  CHECK(changed_lists(small(presets::sentencekv{}), 2702) > 50);
  CHECK(changed_lists(small(presets::heterocache{.drift = .9f}), 2703) > 10);
}

TEST_CASE("next_step is refused where layers share a choice, and for a retain", "[methods]") {
  cache_shape const shape{4, 4, 2, 8, 140, element_type::f32};
  presets::quest shared{.tokens = 64, .layers = {.reuse = 2}, .next_step = true};
  CHECK_THROWS_WITH(start(shared, shape), ContainsSubstring("next_step is set, and layers share a choice"));
  auto parts = presets::snapkv{.tokens = 64}.parts();
  parts.retain.next_step = true;
  CHECK_THROWS_WITH(start(parts, shape), ContainsSubstring("next_step is set for a retain"));
}

TEST_CASE("a saved request reads on as it would have, with next_step too", "[methods]") {
  random_source random(2704);
  cache_shape const shape{3, 4, 2, 8, 140, element_type::f32};
  world const w(shape, random);
  host_exec exec;
  presets::quest policy = small(presets::quest{});
  policy.next_step = true;
  auto state = start(policy, shape);
  for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(100), {l}, w.prompt(l, 100), exec);
  for (std::int64_t n = 101; n <= 110; ++n) {
    for (std::int64_t l = 0; l < shape.layers; ++l) state.choose(w.view(n), {l}, w.step(l, n), exec);
  }
  std::vector<std::byte> saved;
  state_writer out(saved);
  state.archive(out);
  auto again = start(policy, shape);
  state_reader in(saved);
  again.archive(in);
  for (std::int64_t n = 111; n <= 120; ++n) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      selection const a = state.choose(w.view(n), {l}, w.step(l, n), exec);
      selection const b = again.choose(w.view(n), {l}, w.step(l, n), exec);
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) REQUIRE(tokens_in(a, h) == tokens_in(b, h));
    }
  }
}

}  // namespace
}  // namespace kvpolicy_test::methods
