// Every head attends to exactly the rows that were chosen for it, and they are chosen from the engine's own rows.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>

#include "attention_probe.hpp"
#include "decoding.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/presets/adakv.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/h2o.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

// Both read the same f16 rows and f32 queries, so only f32 summation and the vectorised exponential are between them:
// measured at most 1.2e-6 for outputs near 1. Leaving out a list's first range moves outputs by 2e-3 at least.
constexpr double tolerance = 1e-5;

struct watched_run {
  std::vector<seen_attention> prompt;
  std::vector<seen_attention> nodes;  ///< `[steps, layers]`
  std::vector<made_choice> choices;   ///< the same
};

template <class Policy>
watched_run watch(tiny_shape const& shape, Policy const& preset, context_options const& options, std::int64_t prompt,
                  std::int64_t steps) {
  model_owner const model = tiny_llama(shape);
  watched_run result;
  session policy(preset, recording(result.choices));
  llama_context_params params = parameters(options);
  policy.attach(params, model.get());
  attention_probe probe(params);
  decoder ours(model.get(), params);
  ours.feed(random_tokens(prompt));
  result.prompt = std::exchange(probe.seen, {});
  decode_each(ours, random_tokens(steps, 3));
  policy.check();
  result.nodes = std::move(probe.seen);
  REQUIRE(std::ssize(result.nodes) == steps * shape.layers);
  REQUIRE(result.choices.size() == result.nodes.size());
  return result;
}

double largest_difference(seen_attention const& node, std::vector<double> const& reference) {
  double largest = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    double const apart = std::abs(static_cast<double>(node.out[i]) - reference[i]);
    largest = std::isnan(apart) ? INFINITY : std::max(largest, apart);
  }
  return largest;
}

/// The op's outputs against the reference over what was chosen; and over what was chosen for another head, where the two
/// are told apart.
void check_outputs(watched_run const& run, bool by_head) {
  double right = 0;
  double swapped = INFINITY;
  double shortened = INFINITY;
  for (std::size_t i = 0; i < run.nodes.size(); ++i) {
    seen_attention const& node = run.nodes[i];
    REQUIRE(node.by_policy);
    REQUIRE(node.layer == run.choices[i].layer);
    std::vector<range_list> lists = run.choices[i].lists;
    REQUIRE(std::ssize(lists) == (by_head ? node.kv_heads : 1));
    right = std::max(right, largest_difference(node, reference_attention(node, lists)));
    std::vector<range_list> less = lists;
    for (range_list& list : less) list.erase(list.begin());
    shortened = std::min(shortened, largest_difference(node, reference_attention(node, less)));
    if (by_head) {
      std::ranges::rotate(lists, lists.begin() + 1);
      swapped = std::min(swapped, largest_difference(node, reference_attention(node, lists)));
    }
  }
  CAPTURE(right, swapped, shortened);
  CHECK(right < tolerance);
  CHECK(shortened > 10 * tolerance);
  if (by_head) CHECK(swapped > 1000 * tolerance);
}

/// The policy's four verbs with the oracle executor, over the rows and queries that the probe saw.
template <class Policy>
void check_choices(watched_run const& run, Policy const& preset, std::int64_t layers, std::int64_t prompt) {
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    std::size_t const first = static_cast<std::size_t>(layer);
    strided_view<> const before = view_of(run.nodes[first], prompt);
    host_exec exec;
    auto state = start(preset, before.shape());
    // The last 64 queries of the prompt, from however many micro-batches.
    std::vector<float> queries;
    for (seen_attention const& node : run.prompt) {
      if (node.layer == layer) queries.insert(queries.end(), node.q.begin(), node.q.end());
    }
    std::int64_t const row = run.nodes[0].q_heads * run.nodes[0].head_dim;
    REQUIRE(std::ssize(queries) == prompt * row);
    std::int64_t const window = std::min<std::int64_t>(64, prompt);
    float const scale = 1 / std::sqrt(static_cast<float>(run.nodes[0].head_dim));
    state.prefill(before, {0},
                  {.first = 0,
                   .queries = {.data = queries.data() + (prompt - window) * row,
                               .tokens = window,
                               .heads = run.nodes[0].q_heads,
                               .token_stride = row,
                               .head_stride = run.nodes[0].head_dim,
                               .scale = scale}},
                  exec);
    for (std::size_t i = first; i < run.nodes.size(); i += static_cast<std::size_t>(layers)) {
      seen_attention const& node = run.nodes[i];
      strided_view<> const now = view_of(node, run.choices[i].tokens);
      selection const kept = state.choose(now, {0}, {node.q.data(), node.q_heads, node.head_dim, scale}, exec);
      CAPTURE(layer, run.choices[i].tokens);
      REQUIRE(std::ranges::equal(kept.lists(), run.choices[i].lists));
    }
  }
}

/// The probe hands rows over as floats: minima and maxima are the same in those, a spread is not rounded as in 16 bits.
presets::quest exact_quest(std::int32_t tokens) {
  return {.tokens = tokens, .page = 8, .metadata = pools::bounds::kind::range, .group = group_merge::mean};
}

tiny_shape shapes() {
  return GENERATE(tiny_shape{}, tiny_shape{.q_heads = 9, .kv_heads = 3}, tiny_shape{.layers = 3, .q_heads = 2, .kv_heads = 2},
                  tiny_shape{.head_dim = 64});
}

TEST_CASE("quest's op attends to exactly the rows of each head, chosen from the engine's rows") {
  tiny_shape const shape = shapes();
  bool const plain = GENERATE(true, false);
  context_options const options{.threads = plain ? 1 : 2, .type = plain ? GGML_TYPE_F16 : GGML_TYPE_BF16};
  presets::quest const preset = exact_quest(64);
  watched_run const run = watch(shape, preset, options, 250, 20);
  check_outputs(run, true);
  check_choices(run, preset, shape.layers, 250);
}

TEST_CASE("snapkv's op attends to exactly the rows of each head, chosen from the engine's rows") {
  tiny_shape const shape = shapes();
  bool const plain = GENERATE(true, false);
  context_options const options{.threads = plain ? 1 : 2, .type = plain ? GGML_TYPE_F16 : GGML_TYPE_BF16};
  presets::snapkv const preset{.tokens = 64, .sinks = 2, .window = 16, .smooth = {.width = 5}, .after = 0};
  watched_run const run = watch(shape, preset, options, 250, 20);
  check_outputs(run, true);
  check_choices(run, preset, shape.layers, 250);
}

TEST_CASE("quest and snapkv choose from the engine's rows whatever the micro-batches") {
  context_options const options{.micro_batch = GENERATE(8u, 24u, 100u)};
  watched_run const quest = watch({}, exact_quest(64), options, 204, 3);
  check_outputs(quest, true);
  check_choices(quest, exact_quest(64), 2, 204);
  presets::snapkv const preset{.tokens = 64, .window = 16, .after = 0};
  watched_run const snapkv = watch({}, preset, options, 204, 3);
  check_outputs(snapkv, true);
  check_choices(snapkv, preset, 2, 204);
}

TEST_CASE("snapkv's and quest's op attends to exactly the rows of each head where both are at work") {
  policy const both{presets::snapkv{.tokens = 96, .window = 16, .smooth = {.width = 5}, .after = 0}.parts().retain,
                    exact_quest(48).parts().retrieve};
  watched_run const run = watch({.q_heads = 9, .kv_heads = 3}, both, {.threads = 2}, 250, 20);
  check_outputs(run, true);
  check_choices(run, both, 2, 250);
}

TEST_CASE("h2o's and adakv's ops attend to exactly the rows of each head, chosen from the engine's rows") {
  presets::adakv const adakv{.tokens = 64, .window = 16, .after = 0};
  watched_run const shared = watch({}, adakv, {}, 250, 20);
  check_outputs(shared, true);
  check_choices(shared, adakv, 2, 250);
  presets::h2o const h2o{.tokens = 64, .queries = 64};
  watched_run const run = watch({}, h2o, {}, 250, 20);
  check_outputs(run, true);
  check_choices(run, h2o, 2, 250);
}

TEST_CASE("streaming_llm's op and full's attend to exactly the chosen rows in all heads") {
  check_outputs(watch({}, presets::streaming_llm{.tokens = 64}, {}, 250, 20), false);
  watched_run const full = watch({.q_heads = 9, .kv_heads = 3}, presets::full{}, {.threads = 2}, 250, 20);
  double right = 0;
  for (std::size_t i = 0; i < full.nodes.size(); ++i) {
    right = std::max(right, largest_difference(full.nodes[i], reference_attention(full.nodes[i], full.choices[i].lists)));
  }
  CAPTURE(right);
  CHECK(right < tolerance);
}

}  // namespace
}  // namespace kvpolicy::llama::testing
