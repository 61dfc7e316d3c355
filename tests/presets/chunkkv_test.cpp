#include "kvpolicy/presets/chunkkv.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/presets/pyramidkv.hpp"

namespace kvpolicy {
namespace {

// One head of one channel, the query 1: a token's weight is exp(key). Chunks of 2 before the window of 1:
//   weights 1 1 | 6 1 | 2 4 | 3   means 1, 3.5, 3, 3; maxima 1, 6, 4, 3
constexpr std::array<float, 7> weights{1, 1, 6, 1, 2, 4, 3};

range_list retained_by(presets::chunkkv policy) {
  std::array<float, 8> keys{};
  for (std::size_t i = 0; i < weights.size(); ++i) keys[i] = std::log(weights[i]);
  auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
  byte_strides const strides{.layer = 32, .head = 32, .token = 4, .dim = 4};
  strided_view<> const view{{1, 1, 1, 1, 9, element_type::f32}, 8, base, base, strides, strides};
  policy.chunk = 2;
  policy.window = 1;
  policy.smooth = {};
  policy.after = 0;
  float const query = 1;
  host_exec exec;
  auto state = start(policy, view.shape());
  state.prefill(view, {0}, {.queries = {&query, 1, 1, 1, 1, 1}}, exec);
  range_list list = state.retained({0}).of({0});
  return list;
}

TEST_CASE("chunkkv keeps whole chunks, the best by its merge, and the window", "[presets]") {
  CHECK(retained_by({.tokens = 3, .reduce = selectors::merge::mean}) ==
        range_list{{2, 4, reason::scored}, {7, 8, reason::recent}});
  CHECK(retained_by({.tokens = 5, .reduce = selectors::merge::maximum}) ==
        range_list{{2, 6, reason::scored}, {7, 8, reason::recent}});
}

// Layer l's keys name chunk l: one token of 9.5 and nine of .05, in all 9.95, before the 9 of another chunk, ten of .9. The
// last 8 tokens are the window.
TEST_CASE("chunkkv:paper sums attention as it is, and two layers share a choice", "[presets]") {
  constexpr std::int64_t tokens = 48;
  constexpr std::int64_t layers = 4;
  std::array<float, layers * tokens> keys{};
  auto const weigh = [&](std::int64_t layer, std::int64_t chunk, float one, float others) {
    for (std::int64_t i = 0; i < 10; ++i)
      keys[static_cast<std::size_t>(layer * tokens + chunk * 10 + i)] = std::log(i == 0 ? one : others);
  };
  for (std::int64_t l = 0; l < layers; ++l) {
    for (std::int64_t c = 0; c < 4; ++c) weigh(l, c, .5f, .5f);
    weigh(l, l, 9.5f, .05f);          // 9.95 in all, at its first token
    weigh(l, (l + 2) % 4, .9f, .9f);  // 9 in all
  }
  auto const* const base = reinterpret_cast<std::byte const*>(keys.data());
  byte_strides const strides{.layer = 4 * tokens, .head = 4 * tokens, .token = 4, .dim = 4};
  strided_view<> const view{{layers, 1, 1, 1, tokens, element_type::f32}, tokens, base, base, strides, strides};
  std::array<float, 8> const queries{1, 1, 1, 1, 1, 1, 1, 1};
  presets::chunkkv policy = presets::chunkkv::paper();
  policy.tokens = 18;  // the window of 8 and a chunk
  host_exec exec;
  auto state = start(policy, view.shape());
  for (std::int64_t l = 0; l < layers; ++l) state.prefill(view, {l}, {.queries = {queries.data(), 8, 1, 1, 1, 1}}, exec);
  for (std::int32_t l = 0; l < layers; ++l) {
    std::int32_t const chunk = l / 2 * 2;  // its own in layers 0 and 2, the one before it's in 1 and 3
    CHECK(state.retained({l}).of({0}) == range_list{{chunk * 10, chunk * 10 + 10, reason::scored}, {40, 48, reason::recent}});
  }
}

// 20 layers, mean 100, beta 20: from 195 to 5 in equal steps of 10.
TEST_CASE("pyramidkv gives the first layer most and keeps the mean", "[presets]") {
  auto const budget = presets::pyramidkv{.tokens = 100, .beta = 20, .after = 0}.parts().retain.budget;
  cache_shape const shape{.layers = 20, .q_heads = 1, .kv_heads = 1, .head_dim = 1, .max_tokens = 1000};
  std::int64_t sum = 0;
  std::int64_t before = INT64_MAX;
  for (std::int64_t l = 0; l < 20; ++l) {
    std::int64_t const here = budget.of({.shape = shape, .layer = {l}, .tokens = 1000, .prompt = 1000});
    CHECK(here == 195 - 10 * l);
    CHECK(here < before);
    before = here;
    sum += here;
  }
  CHECK(sum == 20 * 100);
}

}  // namespace
}  // namespace kvpolicy
