#include "kvpolicy/gpu/decode.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "cuda/batch_run.hpp"
#include "kvpolicy/compose.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

constexpr std::int32_t narrow(std::int64_t n) { return static_cast<std::int32_t>(n); }

TEST_CASE("a decoder's steps choose what the four verbs choose: full", "[cuda]") {
  run_batches<presets::full>(1, 6, [](random_source&, cache_shape const&) { return presets::full{}; });
}

TEST_CASE("a decoder's steps choose what the four verbs choose: streaming_llm", "[cuda]") {
  run_batches<presets::streaming_llm>(2, 10, [](random_source& random, cache_shape const&) {
    presets::streaming_llm made{.tokens = static_cast<std::int32_t>(random.between(8, 60)),
                                .sinks = static_cast<std::int32_t>(random.between(0, 5)),
                                .keep_prompt = random.one_in(4)};
    if (random.one_in(3)) made.ratio = .4;
    return made;
  });
}

TEST_CASE("a decoder's steps choose what the four verbs choose: snapkv", "[cuda]") {
  run_batches<presets::snapkv>(3, 10, [](random_source& random, cache_shape const& shape) {
    presets::snapkv made{.tokens = static_cast<std::int32_t>(random.between(20, 60)),
                         .window = static_cast<std::int32_t>(random.between(1, 9)),
                         .after = 0};
    made.layers.dense_first = static_cast<std::int32_t>(random.between(0, shape.layers));
    if (random.one_in(3)) made.ratio = .4;
    return made;
  });
}

TEST_CASE("a decoder's steps choose what the four verbs choose: quest", "[cuda]") {
  run_batches<presets::quest>(4, 24, [](random_source& random, cache_shape const& shape) {
    presets::quest made = random.one_in(2) ? presets::quest::paper() : presets::quest{};
    made.page = static_cast<std::int32_t>(random.between(1, 12));
    made.tokens = static_cast<std::int32_t>(random.between(3 * made.page, 60));
    made.layers = {.dense_first = static_cast<std::int32_t>(random.between(0, 1)),
                   .reuse = static_cast<std::int32_t>(random.between(1, 2))};
    made.metadata = pools::bounds::kind::range;  // exact; spreads are not
    made.recent_pages = static_cast<std::int32_t>(random.between(1, 2));
    if (random.one_in(4)) made.ratio = .5;
    static_cast<void>(shape);
    return made;
  });
}

/// Any of its settings; standardised scores are rounded.
presets::chess some_chess(random_source& random, bool standardised) {
  presets::chess made = standardised       ? presets::chess{}
                        : random.one_in(2) ? presets::chess::aggressive()
                                           : presets::chess::moderate();
  made.units = {.page = static_cast<std::int32_t>(random.between(2, 8)),
                .pages_per_chunk = static_cast<std::int32_t>(random.between(1, 4)),
                .chunks_per_grid = static_cast<std::int32_t>(random.between(1, 3))};
  made.recent_pages = static_cast<std::int32_t>(random.between(1, 3));
  made.depth = static_cast<std::int32_t>(random.between(1, 3));
  made.fractions.tokens = random.one_in(2) ? 0 : static_cast<std::int32_t>(random.between(4 * made.units.page, 60));
  made.every = static_cast<std::int32_t>(random.between(0, 3));
  made.entropy = 1.5f;
  made.varentropy = .2f;
  return made;
}

TEST_CASE("a decoder's steps choose what the four verbs choose: chess", "[cuda]") {
  for (bool const standardised : {false, true}) {
    run_batches<presets::chess>(
        5, 20, [&](random_source& random, cache_shape const&) { return some_chess(random, standardised); }, false);
  }
}

/// CHESS's pages with another part in place of one of its own.
template <class Change>
void run_changed_chess(std::uint64_t seed, Change change) {
  auto const made = [&](random_source& random) {
    auto const of = some_chess(random, false).parts().retrieve;
    return policy{keep_all{}, change(random, of)};
  };
  random_source any(seed);
  run_batches<decltype(made(any))>(
      seed, 12, [&](random_source& random, cache_shape const&) { return made(random); }, false);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: chess with a part of another kind", "[cuda]") {
  auto const with = [](auto const& of, auto const& budget, auto const& trigger) {
    return keep{of.segment, of.pool, of.score, budget, of.select, of.window, trigger};
  };
  SECTION("a number of tokens") {
    run_changed_chess(31, [&](random_source& random, auto const& of) {
      return with(of, budgets::tokens{.count = narrow(random.between(4 * of.segment.page, 70))}, of.trigger);
    });
  }
  SECTION("renewed every so many steps") {
    run_changed_chess(32, [&](random_source& random, auto const& of) {
      return with(of, of.budget, triggers::every{narrow(random.between(1, 4))});
    });
  }
  SECTION("renewed by entropy alone") {
    run_changed_chess(33, [&](random_source&, auto const& of) { return with(of, of.budget, of.trigger.second); });
  }
  SECTION("chosen once, behind the prompt") {
    run_changed_chess(34, [&](random_source&, auto const& of) { return with(of, of.budget, triggers::prefill{}); });
  }
}

#if !defined(KVPOLICY_TEST_GPU)  // a scorer of one function reads rows on the host
/// As examples/own_policy: a scorer of one function, and quest's pages of what it retains.
TEST_CASE("a decoder's steps choose what the four verbs choose: a scorer of one's own", "[cuda]") {
  static constexpr auto value_recency =
      score_tokens([](auto, auto value, auto age) { return norm(value) * std::exp(-static_cast<float>(age) / 512.f); });
  auto const made = [](std::int32_t tokens, std::int32_t read) {
    return retain(value_recency, {.tokens = tokens, .sinks = 4}) + presets::quest{.tokens = read, .page = 4};
  };
  run_batches<decltype(made(0, 0))>(35, 12, [&](random_source& random, cache_shape const&) {
    return made(narrow(random.between(40, 80)), narrow(random.between(16, 40)));
  });
}
#endif

TEST_CASE("a decoder's steps choose what the four verbs choose: sentencekv", "[cuda]") {
  static constexpr std::array<std::uint8_t, 19> boundary{0, 1, 0, 0, 1, 0, 0, 0, 0, 1};
  run_batches<presets::sentencekv>(
      6, 24,
      [](random_source& random, cache_shape const& shape) {
        presets::sentencekv made{
            .tokens = static_cast<std::int32_t>(random.between(14, 40)), .keep = random.one_in(2) ? 1.5 : 1, .after = 0};
        made.sentences.boundary = boundary;
        made.sentences.shortest = static_cast<std::int32_t>(random.between(1, 3));
        made.sentences.longest = static_cast<std::int32_t>(random.between(3, 20));
        made.all_after_boundary = random.one_in(3);
        made.spread = random.one_in(2);
        made.carry = random.one_in(2) ? 1 : .5f;
        made.standing = random.one_in(3) ? 0 : .5;
        made.layers.dense_first = static_cast<std::int32_t>(random.between(0, shape.layers - 1));
        if (random.one_in(4)) made.ratio = .5;
        return made;
      },
      false, false);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: h2o", "[cuda]") {
  run_batches<presets::h2o>(
      7, 16,
      [](random_source& random, cache_shape const& shape) {
        presets::h2o made{.tokens = static_cast<std::int32_t>(random.between(10, 50)), .keep_prompt = random.one_in(4)};
        if (random.one_in(2)) made.reduce = scorers::accumulated_attention::reduction::mean;
        if (random.one_in(3)) made.ratio = .5;
        made.layers = {.dense_first = static_cast<std::int32_t>(random.between(0, shape.layers - 1)),
                       .reuse = static_cast<std::int32_t>(random.between(1, 2))};
        return made;
      },
      false);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: tova", "[cuda]") {
  run_batches<presets::tova>(
      8, 16,
      [](random_source& random, cache_shape const&) {
        presets::tova made{.tokens = static_cast<std::int32_t>(random.between(10, 50)), .keep_prompt = random.one_in(4)};
        if (random.one_in(3)) made.ratio = .5;
        return made;
      },
      false);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: heterocache", "[cuda]") {
  std::vector<head_profile> profile;
  run_batches<presets::heterocache>(
      9, 24,
      [&](random_source& random, cache_shape const& shape) {
        profile.clear();
        for (std::int64_t l = 0; l < shape.layers; ++l) {
          for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
            head_role const alone = random.one_in(2) ? head_role::anchor : head_role::shifting;
            head_role const role = h == 0 ? head_role::pivot : random.one_in(3) ? alone : head_role::satellite;
            profile.push_back(
                {.role = role, .pivot = role == head_role::satellite ? 0 : -1, .stability = .1f + std::abs(random.real())});
          }
        }
        return presets::heterocache{
            .heads = profile,
            .tokens = static_cast<std::int32_t>(random.between(60, 90)),
            .full_share = random.one_in(2) ? .6 : .1,
            .watch = random.one_in(3) ? budgets::by_head_role::watched::whole : budgets::by_head_role::watched::all,
            .own = random.one_in(3),
            .window = 1 + 2 * static_cast<std::int32_t>(random.between(0, 1)),
            .every = static_cast<std::int32_t>(random.between(3, 6)),
            .drift = .9f,
            .group = random.one_in(3) ? group_merge::maximum : group_merge::mean,
            .chance_corrected = random.one_in(3),
            .observe = static_cast<std::int32_t>(random.between(1, 4)),
            .monitor_smooth = random.one_in(2) ? 1 : 3,
            .least = 4,
            .after = 0};
      },
      false);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: infllm", "[cuda]") {
  run_batches<presets::infllm>(
      12, 20,
      [](random_source& random, cache_shape const& shape) {
        presets::infllm made{};
        made.block = static_cast<std::int32_t>(random.between(2, 7));
        made.representatives = static_cast<std::int32_t>(random.between(1, made.block));
        made.local = static_cast<std::int32_t>(random.between(1, 9));
        made.pre_rope = random.one_in(2);
        made.tokens = static_cast<std::int32_t>(random.between(5 * made.block, 60));
        made.layers = {.dense_first = static_cast<std::int32_t>(random.between(0, shape.layers - 1)),
                       .reuse = static_cast<std::int32_t>(random.between(1, 2))};
        return made;
      },
      false, false, true);
}

TEST_CASE("a decoder's steps choose what the four verbs choose: quest by mean and spread", "[cuda]") {
  run_batches<presets::quest>(
      11, 12,
      [](random_source& random, cache_shape const&) {
        return presets::quest{.tokens = static_cast<std::int32_t>(random.between(24, 60))};
      },
      false);
}

TEST_CASE("quest scores pages on tensor cores, beside the pooling of a step's key", "[cuda]") {
  auto const how = GENERATE(pools::bounds::kind::range, pools::bounds::kind::mean_deviation);
  auto const type = GENERATE(element_type::f16, element_type::bf16);
  std::int64_t const dim = GENERATE(64, 128);  // rows that the tensor cores' kernels take
  CAPTURE(how, type, dim);
  random_source random(31);
  presets::quest policy{.tokens = 40};
  policy.metadata = how;
  cache_shape const shape{.layers = 1, .q_heads = 4, .kv_heads = 2, .head_dim = dim, .max_tokens = 120, .type = type};
  batch_run<presets::quest> run(policy, shape, 2, false, random);
  REQUIRE(run.step().empty());
  run.begin(0, 90);
  run.begin(1, 61);
  for (int step = 0; step < 6; ++step) REQUIRE(run.step() == "");
}

/// Quest's pages of what another method retained, each head's own or a layer's.
template <class Retain>
void run_quest_over(std::uint64_t seed) {
  using pair = decltype(policy{Retain{}.parts().retain, presets::quest{}.parts().retrieve});
  run_batches<pair>(seed, 10, [](random_source& random, cache_shape const& shape) {
    Retain retain{};
    retain.after = 0;
    retain.tokens = static_cast<std::int32_t>(random.between(40, 80));
    retain.layers.dense_first = static_cast<std::int32_t>(random.between(0, 1));
    presets::quest made = random.one_in(2) ? presets::quest::paper() : presets::quest{};
    made.page = static_cast<std::int32_t>(random.between(1, 7));
    made.tokens = static_cast<std::int32_t>(random.between(3 * made.page, 36));
    made.layers = {.dense_first = static_cast<std::int32_t>(random.between(0, shape.layers - 1))};
    made.metadata = pools::bounds::kind::range;
    return policy{retain.parts().retain, made.parts().retrieve};
  });
}

TEST_CASE("a decoder's steps choose what the four verbs choose: quest over what is retained", "[cuda]") {
  SECTION("snapkv, a list for each head") { run_quest_over<presets::snapkv>(13); }
  SECTION("adakv, lists of unequal length") { run_quest_over<presets::adakv>(14); }
  SECTION("pyramidkv, layers of unequal length") { run_quest_over<presets::pyramidkv>(15); }
  SECTION("chunkkv, a list for the layer") { run_quest_over<presets::chunkkv>(16); }
}

/// Two slots' caches; the first one's tokens are written.
struct written_batch {
  cache_shape shape;
  batch_cache cache;
  test_device device{};
  prompt_exec exec{};

  explicit written_batch(std::int64_t layers) : written_batch(layers, random_source(12)) {}
  written_batch(std::int64_t layers, random_source random)
      : shape{.layers = layers, .q_heads = 2, .kv_heads = 1, .head_dim = 8, .max_tokens = 40},
        cache(shape, 2, 8, page_layout::nhd, random, true) {
    for (std::int64_t t = 0; t < shape.max_tokens; ++t) cache.write(0, t, random);
  }
};

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

TEST_CASE("a decoder whose policy reads logits asks for observe() after a unit of steps", "[cuda]") {
  written_batch batch(1);
  auto& [shape, cache, device, exec] = batch;
  std::vector<float> const frequencies{1, .3f, .1f, .03f};
  shared_vector<float> const written(2 * 8, .5f);
  gpu::vector_rows logits{};
  logits.base = on_device(written).data;
  logits.elements = std::ssize(written);
  logits.sequence_stride = 8;
  device.send();
  auto const steps = [&](bool observe_once) {
    presets::chess const policy{.fractions = {.tokens = 30}, .units = {.page = 4}};
    gpu::decoder<presets::chess, test_device> decoder(policy, shape, 2, device);
    prompt_signals prompt{};
    prompt.rope = {frequencies.data(), 4};
    decoder.prefill(0, cache.view(), 1, {0}, prompt, exec);
    std::int32_t tokens = 1;
    while (tokens < 40) {
      decoder.plan(std::vector<std::int32_t>{++tokens, 0});
      // As in a captured step, which calls it once on the host.
      if (observe_once && tokens == 2) decoder.observe(logits, 8);
    }
    return tokens;
  };
  CHECK(steps(true) == 40);
  CHECK_THROWS_AS(steps(false), invalid_value);
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
