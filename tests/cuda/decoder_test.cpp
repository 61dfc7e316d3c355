#include "kvpolicy/gpu/decoder.hpp"

#include <catch2/catch_test_macros.hpp>

#include "cuda/batch_run.hpp"
#include "cuda/written_batch.hpp"
#include "kvpolicy/compose.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

TEST_CASE("a decoder's steps choose what the four verbs choose: full", "[cuda]") {
  run_batches<presets::full>(1, 6, [](random_source&, cache_shape const&) { return presets::full{}; });
}

// Keys of 576 channels, of which 512 are the values, and others: attention on tensor cores and without.
TEST_CASE("a decoder's steps on latent rows choose and attend as the four verbs do", "[cuda]") {
  auto const run = [](std::uint64_t seed, auto const& make) {
    using policy = std::decay_t<decltype(make(8))>;
    auto const drawn = [&](random_source& random, cache_shape const&) {
      return make(static_cast<std::int32_t>(random.between(8, 40)));
    };
    run_batches<policy>(seed, 14, drawn, true, true, false, latent_shape);
  };
  run(31, [](std::int32_t) { return presets::full{}; });
  auto const with_many_heads = [](random_source& random, std::int64_t most_tokens) {
    cache_shape shape = latent_shape(random, most_tokens);
    shape.q_heads = random.between(17, 40);
    return shape;
  };
  run_batches<presets::streaming_llm>(
      30, 14, [](random_source&, cache_shape const&) { return presets::streaming_llm{.tokens = 30}; }, true, true, false,
      with_many_heads);
  run(32, [](std::int32_t tokens) { return presets::streaming_llm{.tokens = tokens}; });
  run(33, [](std::int32_t tokens) { return presets::quest{.tokens = tokens, .page = 4}; });
  run(34, [](std::int32_t tokens) { return presets::snapkv{.tokens = tokens, .window = 4, .after = 0}; });
  run(35, [](std::int32_t tokens) { return presets::tova{.tokens = tokens}; });
  run(36, [](std::int32_t tokens) { return presets::h2o{.tokens = tokens}; });
  run(37, [](std::int32_t tokens) { return presets::twilight{.tokens = tokens, .page = 4}; });
  run(38, [](std::int32_t tokens) { return presets::rocketkv{.tokens = tokens, .after = 0}; });
  run(39, [](std::int32_t tokens) { return presets::omnikv{.tokens = tokens + 25}; });
  run(40, [](std::int32_t tokens) {
    return presets::chess{.fractions = {.tokens = tokens + 40}, .units = {.page = 4}, .pre_rope = false};
  });
  std::vector<std::uint8_t> const boundary{0, 1, 0, 0, 0, 1, 0, 0};
  run_batches<presets::sentencekv>(
      42, 14,
      [&](random_source& random, cache_shape const&) {
        return presets::sentencekv{.tokens = static_cast<std::int32_t>(random.between(20, 60)),
                                   .window = 4,
                                   .sentences = {.boundary = boundary, .longest = 6},
                                   .after = 0};
      },
      true, false, false, latent_shape);
  run(41, [](std::int32_t tokens) { return presets::chunkkv{.tokens = tokens, .chunk = 4, .window = 4, .after = 0}; });
}

TEST_CASE("scorers without kernels for latent rows say so before anything is read", "[cuda]") {
  auto const refused = [](auto const& policy) {
    random_source random(1);
    cache_shape const shape{.layers = 1,
                            .q_heads = 8,
                            .kv_heads = 1,
                            .head_dim = 576,
                            .max_tokens = 60,
                            .type = element_type::f16,
                            .value_dim = 512};
    auto const begin = [&] {
      batch_run<std::decay_t<decltype(policy)>> run(policy, shape, 1, true, random);
      run.begin(0, 50);
    };
    CHECK_THROWS_AS(begin(), unsupported);
  };
  refused(presets::infllm{.tokens = 40, .block = 4, .pre_rope = false});
  refused(presets::knorm{.tokens = 20});
  refused(presets::keydiff{.tokens = 20});
  refused(presets::lagkv{.tokens = 20, .lag = 8});
  refused(presets::expected_attention{.tokens = 20});
}

TEST_CASE("a decoder does not undo the rotation of rows that are keys and values", "[cuda]") {
  presets::chess const chess{.fractions = {.tokens = 60}, .units = {.page = 4}};
  cache_shape const shape{
      .layers = 1, .q_heads = 8, .kv_heads = 1, .head_dim = 576, .max_tokens = 60, .type = element_type::f16, .value_dim = 512};
  bool served = false;
  bool refused = false;  // where values are a part of the keys' rows, which chance has
  random_source random(1);
  for (int i = 0; i < 12; ++i) {
    batch_run<presets::chess> run(chess, shape, 1, false, random);
    bool const latent = run.values_are_part_of_keys();
    bool threw = false;
    try {
      run.begin(0, 20);
    } catch (unsupported const&) {
      threw = true;
    }
    CHECK(threw == latent);
    (latent ? refused : served) = true;
  }
  CHECK((served && refused));
}

TEST_CASE("the sequences of a decoder share one rotary embedding", "[cuda]") {
  written_batch batch(1);
  auto& [shape, cache, device, exec] = batch;
  gpu::decoder<presets::chess, test_device> decoder(presets::chess{.fractions = {.tokens = 30}, .units = {.page = 4}}, shape, 2,
                                                    device);
  std::vector<float> const first{1, .3f, .1f, .03f};
  std::vector<float> const other{1, .5f, .2f, .1f};
  device.send();
  auto const prefill = [&](std::int64_t sequence, rotation const& rope) {
    prompt_signals prompt{};
    prompt.rope = rope;
    decoder.prefill(sequence, cache.view(), 20, {0}, prompt, exec);
  };
  prefill(0, {first.data(), 4});
  prefill(1, {first.data(), 4});
  REQUIRE_THROWS_AS(prefill(1, {other.data(), 4}), invalid_value);
  REQUIRE_THROWS_AS(prefill(1, {first.data(), 3}), invalid_value);
  REQUIRE_THROWS_AS(prefill(1, {first.data(), 4, rotation::pairing::neighbours}), invalid_value);
  decoder.plan(std::vector<std::int32_t>{21, 0});  // the other sequence goes on
  prefill(1, {first.data(), 4});
}

TEST_CASE("what a decoder can't take is refused, and nothing has changed", "[cuda]") {
  written_batch batch(2);
  auto& [shape, cache, device, exec] = batch;
  auto const made = [&](auto const& policy) {
    return gpu::decoder<std::decay_t<decltype(policy)>, test_device>(policy, shape, 2, device);
  };
  device.send();
  auto quest = made(presets::quest{.tokens = 24});
  auto const prefill = [&](auto& decoder, std::int64_t first, std::int64_t tokens, std::int64_t layer) {
    prompt_signals prompt{};
    prompt.first = first;
    decoder.prefill(0, cache.view(), tokens, {layer}, prompt, exec);
  };
  auto const plan = [&](auto& decoder, std::vector<std::int32_t> const& tokens) { decoder.plan(tokens); };
  REQUIRE_THROWS_AS(plan(quest, {5, 0}), invalid_value);  // no prompt
  REQUIRE_THROWS_AS(prefill(quest, 0, 41, 0), invalid_value);
  REQUIRE_THROWS_AS(prefill(quest, 5, 4, 0), invalid_value);
  REQUIRE_THROWS_AS(prefill(quest, 0, 10, 1), invalid_value);  // layer 0 is first
  prefill(quest, 0, 10, 0);
  REQUIRE_THROWS_AS(plan(quest, {11, 0}), invalid_value);  // a layer is missing
  prefill(quest, 0, 10, 1);
  REQUIRE_THROWS_AS(prefill(quest, 0, 10, 2), invalid_value);
  REQUIRE_THROWS_AS(plan(quest, {12, 0}), invalid_value);
  REQUIRE_THROWS_AS(plan(quest, {11}), invalid_value);
  REQUIRE_THROWS_AS(plan(quest, {11, 1}), invalid_value);
  plan(quest, {11, 0});
  plan(quest, {12, 0});
  REQUIRE_THROWS_AS(plan(quest, {12, 0}), invalid_value);
  REQUIRE_THROWS_AS(plan(quest, {13, gpu::paused}), invalid_value);  // nobody is there to pause
  plan(quest, {gpu::paused, 0});
  plan(quest, {13, 0});
  REQUIRE_THROWS_AS(quest.choose(cache.view(), {2}, {}, 1), invalid_value);
  REQUIRE_THROWS_AS(quest.choose(cache.view(), {-1}, {}, 1), invalid_value);
  REQUIRE_THROWS_AS(quest.choose(cache.view(), {0}, {}, unset_scale), invalid_value);
  REQUIRE_THROWS_AS(quest.standing({2}), invalid_value);
  auto of_others = cache.view();
  of_others.pool.cache.kv_heads += 1;
  REQUIRE_THROWS_AS(quest.prefill(1, of_others, 10, {0}, {}, exec), invalid_value);
  auto in_one_place = cache.view();
  in_one_place.pool.key_strides.token = in_one_place.pool.key_strides.head = 0;
  REQUIRE_THROWS_AS(quest.prefill(1, in_one_place, 10, {0}, {}, exec), invalid_value);
  auto chess = made(presets::chess{.fractions = {.tokens = 30}, .units = {.page = 4}});
  REQUIRE_THROWS_AS(chess.prefill(0, cache.view(), 10, {0}, {}, exec), unsupported);  // no rotary embedding

  REQUIRE_THROWS_AS(made(presets::chess{.paper_literal = true}), unsupported);
  cache_shape wide = shape;
  wide.q_heads = 17;
  REQUIRE_THROWS_AS((gpu::decoder<presets::full, test_device>(presets::full{}, wide, 1, device)), unsupported);
  std::vector<std::uint8_t> const boundary{0, 1};
  presets::sentencekv const sentences{.tokens = 30, .sentences = {.boundary = boundary}, .after = 0};
  auto by_sentence = made(sentences);
  REQUIRE_THROWS_AS(by_sentence.prefill(0, cache.view(), 10, {0}, {}, exec), unsupported);  // neither ids nor queries
  REQUIRE_THROWS_AS((gpu::decoder<presets::full, test_device>(presets::full{}, shape, 0, device)), invalid_value);
  REQUIRE_THROWS_AS((gpu::decoder<presets::full, test_device>(presets::full{}, shape, -1, device)), invalid_value);
  REQUIRE_THROWS_AS(by_sentence.choose(cache.view(), {0}, {}, 1), invalid_value);  // no ids
}

struct view_of_slots : gpu::paged_batch {
  static constexpr bool by_sequence = true;
};

TEST_CASE("a plan of rows that move names a slot for each, and once", "[cuda]") {
  written_batch batch(2);
  auto& [shape, cache, device, exec] = batch;
  auto const made = [&](std::int64_t rows) {
    return gpu::decoder<presets::quest, test_device>(presets::quest{.tokens = 24}, shape, 3, device, 1, rows);
  };
  REQUIRE_THROWS_AS(made(-1), invalid_value);
  device.send();
  auto decoder = made(2);
  auto const prefill = [&](std::int64_t slot, std::int64_t tokens, std::int64_t row) {
    for (std::int64_t l = 0; l < 2; ++l) decoder.prefill(slot, cache.view(), tokens, {l}, {}, exec, row);
  };
  REQUIRE_THROWS_AS(prefill(2, 10, -1), invalid_value);  // which row?
  REQUIRE_THROWS_AS(prefill(2, 10, 2), invalid_value);
  prefill(2, 10, 0);
  prefill(0, 20, 0);
  using numbers = std::vector<std::int32_t>;
  auto const plan = [&](numbers const& slots, numbers const& tokens) { decoder.plan_rows(slots, tokens); };
  REQUIRE_THROWS_AS(decoder.plan(numbers{21, 0, 11}), invalid_value);
  REQUIRE_THROWS_AS(plan({2, 2}, {11, 11}), invalid_value);
  REQUIRE_THROWS_AS(plan({3}, {11}), invalid_value);
  REQUIRE_THROWS_AS(plan({-1}, {11}), invalid_value);
  REQUIRE_THROWS_AS(plan({1}, {11}), invalid_value);  // nobody is there
  REQUIRE_THROWS_AS(plan({0, 1, 2}, {21, 0, 11}), invalid_value);
  REQUIRE_THROWS_AS(plan({0, 2}, {21}), invalid_value);
  REQUIRE_THROWS_AS(decoder.plan_rows(numbers{0}, numbers{21}, numbers{1, 1}), invalid_value);
  plan({2}, {11});  // the other pauses
  plan({0, 2}, {21, 12});
  plan({2, 0}, {gpu::paused, 22});
  plan({}, {});
  REQUIRE_THROWS_AS(decoder.end(3), invalid_value);
  decoder.end(2);
  REQUIRE_THROWS_AS(plan({2}, {13}), invalid_value);
  decoder.prefill(1, cache.view(), 10, {0}, {}, exec, 1);
  REQUIRE_THROWS_AS(plan({0}, {23}), invalid_value);  // it would forget a prompt that has one of two layers
  decoder.prefill(1, cache.view(), 10, {1}, {}, exec, 1);
  plan({0}, {23});

  auto moves = made(1);  // a view of slots needs no row
  for (std::int64_t l = 0; l < 2; ++l) moves.prefill(1, view_of_slots{cache.view()}, 10, {l}, {}, exec);
  moves.plan_rows(numbers{1}, numbers{11});

  gpu::decoder<presets::full, test_device> by_slot(presets::full{}, shape, 1, device);
  REQUIRE_THROWS_AS(by_slot.plan_rows(numbers{0}, numbers{0}), invalid_value);
}

TEST_CASE("a plan says how many of the last step's tokens stayed: at least one, at most all", "[cuda]") {
  written_batch batch(2);
  auto& [shape, cache, device, exec] = batch;
  auto const made = [&](std::int64_t most) {
    return gpu::decoder<presets::full, test_device>(presets::full{}, shape, 2, device, most);
  };
  REQUIRE_THROWS_AS(made(0), invalid_value);
  REQUIRE_THROWS_AS(made(most_step_tokens + 1), invalid_value);
  device.send();
  auto decoder = made(4);
  for (std::int64_t l = 0; l < 2; ++l) decoder.prefill(0, cache.view(), 10, {l}, {}, exec);
  auto const plan = [&](std::int32_t tokens, std::int32_t brought) {
    decoder.plan(std::vector<std::int32_t>{tokens, 0}, std::vector<std::int32_t>{brought, 1});
  };
  REQUIRE_THROWS_AS(plan(15, 5), invalid_value);  // more than a step may bring
  REQUIRE_THROWS_AS(plan(10, 0), invalid_value);
  REQUIRE_THROWS_AS(plan(13, 4), invalid_value);  // the prompt has 10
  REQUIRE_THROWS_AS(plan(15, 4), invalid_value);
  REQUIRE_THROWS_AS(decoder.plan(std::vector<std::int32_t>{14, 0}, std::vector<std::int32_t>{4}), invalid_value);
  plan(14, 4);
  REQUIRE_THROWS_AS(plan(12, 2), invalid_value);  // the step's first token stays
  REQUIRE_THROWS_AS(plan(16, 1), invalid_value);
  plan(gpu::paused, 0);
  plan(13, 2);  // one of the four stayed
  plan(17, 4);  // both did

  decoder.cut(0, 12);
  plan(13, 1);
  REQUIRE_THROWS_AS(decoder.cut(0, 9), invalid_value);  // of the prompt
  REQUIRE_THROWS_AS(decoder.cut(0, 14), invalid_value);
  REQUIRE_THROWS_AS(decoder.cut(1, 0), invalid_value);  // nobody is there
  REQUIRE_THROWS_AS(decoder.cut(2, 0), invalid_value);
  decoder.prefill(0, cache.view(), 11, {0}, {.first = 11}, exec);
  REQUIRE_THROWS_AS(plan(12, 1), invalid_value);  // a layer is missing
  decoder.prefill(0, cache.view(), 11, {1}, {.first = 11}, exec);
  plan(12, 1);
}

// What is known at compile time: which policies have kernels for every step.
template <class... Presets>
constexpr bool serves_all = (gpu::decodable<Presets, test_device> && ...);
static_assert(serves_all<presets::full, presets::streaming_llm, presets::h2o, presets::tova, presets::knorm, presets::snapkv,
                         presets::pyramidkv, presets::adakv, presets::keydiff, presets::quest, presets::infllm,
                         presets::expected_attention, presets::lagkv, presets::duoattention, presets::omnikv, presets::twilight,
                         presets::rkv, presets::triattention, presets::rocketkv, presets::kvzip, presets::chess,
                         presets::heterocache, presets::sentencekv, presets::chunkkv>);
template <class Retain, class Retrieve>
constexpr bool served = gpu::decodable<policy<Retain, Retrieve>, test_device>;
using snapkv_retain = decltype(presets::snapkv{.after = 0}.parts().retain);
using h2o_retain = decltype(presets::h2o{}.parts().retain);
using sentence_retrieve = decltype(presets::sentencekv{}.parts().retrieve);
using infllm_retrieve = decltype(presets::infllm{}.parts().retrieve);
using quest_retrieve = decltype(presets::quest{}.parts().retrieve);
static_assert(served<keep_all, keep_all> && served<snapkv_retain, keep_all> && served<keep_all, quest_retrieve>);
static_assert(served<snapkv_retain, sentence_retrieve> && served<snapkv_retain, quest_retrieve>);
// Why not, by name: infllm's host asks every token; h2o's indices change at every step.
static_assert(gpu::decodable_retain<snapkv_retain, test_device> && gpu::decodable_retrieve<infllm_retrieve, test_device>);
static_assert(!gpu::decodable_together<snapkv_retain, infllm_retrieve, test_device>);
using pages_behind_tokens = decltype(keep{segments::pages{}, pools::bounds{}, scorers::upper_bound{}, budgets::tokens{},
                                          selectors::top{}, windows::tokens{}, triggers::every_step{}});
static_assert(!gpu::decodable_retrieve<pages_behind_tokens, test_device>);  // a window that cuts through a listed page
static_assert(!gpu::decodable_together<h2o_retain, sentence_retrieve, test_device>);
static_assert(!gpu::decodable_together<h2o_retain, quest_retrieve, test_device>);
// Which policies learn nothing from steps, so that drafts can be taken back.
template <class Policy>
constexpr bool can_cut = requires(gpu::decoder<Policy, test_device>& decoder) {
  decoder.cut(0, 0);
};
static_assert(can_cut<presets::full> && can_cut<presets::snapkv>);
static_assert(!can_cut<presets::streaming_llm> && !can_cut<presets::quest> && !can_cut<presets::tova>);

}  // namespace
}  // namespace kvpolicy_test
