// Every preset through the four verbs, its primitives run by the kernels' bodies: the selections are host_exec's.
#include <catch2/catch_test_macros.hpp>
#include <iterator>

#include "conformance/rounds.hpp"
#include "cuda/test_device.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "methods/naive_world.hpp"

namespace kvpolicy_test {
namespace {

using methods::world;

/// Lists that a request's steps read, of every layer, as tokens.
template <class Policy, class Exec>
std::vector<std::vector<std::int32_t>> lists_of(Policy const& policy, world const& w, std::int64_t prompt, std::int64_t steps,
                                                std::vector<float> const& logits, Exec& exec) {
  std::vector<std::vector<std::int32_t>> made;
  auto state = start(policy, w.shape);
  std::vector<float> const frequency(static_cast<std::size_t>(w.shape.head_dim / 2 + 1), .01f);
  for (std::int64_t l = 0; l < w.shape.layers; ++l) {
    prompt_signals told = w.prompt(l, prompt);
    std::int64_t const window = std::min<std::int64_t>(observation_queries(policy), prompt);
    told.queries = w.window(l, prompt - window, prompt);
    told.rope = {frequency.data(), w.shape.head_dim / 2, rotation::pairing::halves};
    state.prefill(w.view(prompt), {l}, told, exec);
  }
  if (contains(needs_of(policy), signals::repetition)) {
    for (token_span const piece : {token_span{0, prompt / 2}, token_span{prompt / 2, prompt}}) {
      for (std::int64_t l = 0; l < w.shape.layers; ++l) {
        state.prefill(w.view(prompt + 8), {l}, {.first = prompt, .queries = w.window(l, prompt, prompt + 8), .repeats = piece},
                      exec);
      }
    }
  }
  for (std::int64_t n = prompt + 1; n <= prompt + steps; ++n) {
    for (std::int64_t l = 0; l < w.shape.layers; ++l) {
      selection const kept =
          state.choose(w.view(n), {l}, step_signals{w.heads(l, n - 1), w.ids[static_cast<std::size_t>(n - 1)]}, exec);
      for (range_list const& list : kept.lists()) {
        std::vector<std::int32_t>& tokens = made.emplace_back();
        for (token_range const& range : list) {
          for (std::int32_t t = range.begin; t < range.end; ++t) tokens.push_back(t);
        }
      }
    }
    state.observe({std::span<float const>(logits)}, exec);
  }
  return made;
}

struct compared {
  std::int64_t lists = 0;
  std::int64_t differ = 0;
  std::int64_t tokens = 0;  ///< by which lists differ at most
};

template <class Make>
compared compare(std::uint64_t seed, int rounds, content kind, Make make) {
  random_source random(seed);
  compared made;
  for (int round = 0; round < rounds; ++round) {
    std::int64_t const heads = random.between(1, 3);
    constexpr std::array<std::int64_t, 4> dims{4, 8, 16, 24};
    constexpr std::array<std::int64_t, 3> groups{1, 2, 4};
    cache_shape const shape{.layers = random.between(1, 3),
                            .q_heads = heads * random.pick(groups),
                            .kv_heads = heads,
                            .head_dim = random.pick(dims),
                            .max_tokens = random.between(70, 110),
                            .type = random.pick(types)};
    world const w(shape, random, kind);
    auto const policy = make(random, shape);
    std::vector<float> const logits = random.reals(50, 4);
    std::int64_t const prompt = random.between(40, shape.max_tokens - 12);
    host_exec host;
    test_exec kernels(static_cast<std::uint64_t>(round + 1));
    auto const want = lists_of(policy, w, prompt, 10, logits, host);
    auto const got = lists_of(policy, w, prompt, 10, logits, kernels);
    REQUIRE(want.size() == got.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      std::vector<std::int32_t> missing;
      std::ranges::set_difference(want[i], got[i], std::back_inserter(missing));
      ++made.lists;
      made.differ += want[i] != got[i] ? 1 : 0;
      made.tokens = std::max<std::int64_t>(made.tokens, std::ssize(missing));
    }
  }
  REQUIRE(made.lists >= rounds * 10);  // a list at least in each of 10 steps
  return made;
}

std::int32_t some(random_source& random, std::int64_t low, std::int64_t high) {
  return static_cast<std::int32_t>(random.between(low, high));
}

/// Scores that are exact in fp32: equal lists, always.
template <class Make>
void exactly(std::uint64_t seed, Make make) {
  compared const found = compare(seed, rounds_of(12), content::tied, make);
  CAPTURE(found.lists, found.differ, found.tokens);
  REQUIRE(found.differ == 0);
}

/// Scores that are rounded: of real numbers, which seldom tie.
template <class Make>
void but_for_rounding(std::uint64_t seed, Make make) {
  compared const found = compare(seed, rounds_of(12), content::plain, make);
  CAPTURE(found.lists, found.differ, found.tokens);
  REQUIRE(found.differ * 100 <= found.lists);
  REQUIRE(found.tokens <= 1);
}

TEST_CASE("every preset selects with the kernels what it selects with host_exec", "[cuda]") {
  SECTION("full") {
    exactly(1, [](random_source&, cache_shape const&) { return presets::full{}; });
  }
  SECTION("streaming_llm") {
    exactly(2, [](random_source& r, cache_shape const&) { return presets::streaming_llm{.tokens = some(r, 10, 50)}; });
  }
  SECTION("quest") {
    exactly(3, [](random_source& r, cache_shape const&) {
      presets::quest made = presets::quest::paper();
      made.page = some(r, 2, 6);
      made.tokens = some(r, 24, 50);
      made.layers = {};
      return made;
    });
    but_for_rounding(4, [](random_source& r, cache_shape const&) {
      return presets::quest{.tokens = some(r, 24, 50), .page = some(r, 2, 6)};
    });
  }
  SECTION("infllm") {
    but_for_rounding(5, [](random_source& r, cache_shape const&) {
      return presets::infllm{.tokens = some(r, 40, 60),
                             .block = some(r, 4, 8),
                             .representatives = some(r, 1, 3),
                             .local = some(r, 2, 20),
                             .pre_rope = r.one_in(2)};
    });
  }
  SECTION("chess") {
    exactly(6, [](random_source& r, cache_shape const&) {
      presets::chess made = presets::chess::aggressive();
      made.units = {.page = 2, .pages_per_chunk = 2, .chunks_per_grid = 2};  // means of whole numbers by 1 and 2
      made.recent_pages = 1 << some(r, 0, 1);
      made.every = some(r, 0, 3);
      return made;
    });
    but_for_rounding(7, [](random_source& r, cache_shape const&) {
      presets::chess made{};
      made.units.page = some(r, 2, 6);
      made.fractions.tokens = 40;
      made.every = 2;
      return made;
    });
    but_for_rounding(8, [](random_source& r, cache_shape const&) {
      presets::chess made = presets::chess::aggressive();
      made.units = {.page = some(r, 2, 6), .pages_per_chunk = 2, .chunks_per_grid = 2};
      made.recent_pages = 2;
      made.paper_literal = true;
      return made;
    });
  }
  SECTION("snapkv and its kin") {
    but_for_rounding(9, [](random_source& r, cache_shape const&) {
      return presets::snapkv{.tokens = some(r, 20, 36), .window = some(r, 1, 12), .after = 0};
    });
    but_for_rounding(
        10, [](random_source& r, cache_shape const&) { return presets::pyramidkv{.tokens = some(r, 20, 30), .after = 0}; });
    but_for_rounding(
        11, [](random_source& r, cache_shape const&) { return presets::adakv{.tokens = some(r, 20, 30), .after = 0}; });
    but_for_rounding(
        12, [](random_source& r, cache_shape const&) { return presets::chunkkv{.tokens = some(r, 20, 30), .after = 0}; });
  }
  SECTION("by the rows alone") {
    but_for_rounding(13, [](random_source& r, cache_shape const&) { return presets::knorm{.tokens = some(r, 8, 30)}; });
    but_for_rounding(14, [](random_source& r, cache_shape const&) { return presets::keydiff{.tokens = some(r, 8, 30)}; });
    but_for_rounding(
        15, [](random_source& r, cache_shape const&) { return presets::expected_attention{.tokens = some(r, 8, 30)}; });
    but_for_rounding(16, [](random_source& r, cache_shape const&) {
      return presets::lagkv{.ratio = .1 * some(r, 1, 8), .lag = some(r, 4, 12)};
    });
  }
  SECTION("evicted step by step") {
    but_for_rounding(17, [](random_source& r, cache_shape const&) { return presets::h2o{.tokens = some(r, 10, 36)}; });
    but_for_rounding(18, [](random_source& r, cache_shape const&) { return presets::tova{.tokens = some(r, 10, 36)}; });
  }
  SECTION("evicted every few steps") {
    but_for_rounding(24, [](random_source& r, cache_shape const&) {
      return presets::rkv{
          .tokens = some(r, 10, 36), .keep_prompt = r.one_in(2), .every = some(r, 1, 5), .window = some(r, 1, 6)};
    });
    static std::vector<query_moment> moments;
    but_for_rounding(25, [](random_source& r, cache_shape const& shape) {
      moments.clear();
      for (std::int64_t i = 0; i < shape.layers * shape.q_heads * shape.head_dim / 2; ++i)
        moments.push_back({r.real(), r.real(), 2 + r.real()});
      return presets::triattention{.moments = moments,
                                   .tokens = some(r, 10, 36),
                                   .keep_prompt = r.one_in(2),
                                   .every = some(r, 1, 5),
                                   .recent = some(r, 0, 4)};
    });
  }
  SECTION("heads that retrieve keep everything") {
    static std::vector<float> retrieval;
    exactly(21, [](random_source& r, cache_shape const& shape) {
      retrieval = r.reals(shape.layers * shape.kv_heads);
      return presets::duoattention{.retrieval = retrieval, .tokens = some(r, 10, 60), .sinks = 3, .recent = some(r, 2, 7)};
    });
  }
  SECTION("what a repetition attends to, of all layers") {
    but_for_rounding(27, [](random_source& r, cache_shape const&) {
      return presets::kvzip{.tokens = some(r, 8, 30), .sinks = some(r, 0, 4), .recent = some(r, 0, 3)};
    });
  }
  SECTION("few layers choose for the others") {
    but_for_rounding(22, [](random_source& r, cache_shape const&) {
      return presets::omnikv{
          .tokens = some(r, 20, 36), .generated = r.one_in(2), .layers = {.reuse = some(r, 2, 3), .whole = some(r, 0, 1)}};
    });
  }
  SECTION("pages by few channels, of what was retained") {
    but_for_rounding(26, [](random_source& r, cache_shape const&) {
      return presets::rocketkv{.tokens = some(r, 12, 30), .kept = some(r, 30, 60), .channels = some(r, 1, 4), .after = 0};
    });
  }
  SECTION("pages, and of them the tokens with most attention") {
    but_for_rounding(23, [](random_source& r, cache_shape const&) {
      return presets::twilight{.tokens = some(r, 30, 60), .mass = .1 * some(r, 3, 9), .page = some(r, 1, 6)};
    });
  }
  SECTION("sentencekv") {
    static constexpr std::array<std::uint8_t, 12> boundary{0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
    but_for_rounding(19, [](random_source& r, cache_shape const&) {
      presets::sentencekv made{.tokens = some(r, 16, 36), .keep = 1.5, .after = 0};
      made.sentences.boundary = boundary;
      made.sentences.shortest = 2;
      return made;
    });
  }
  SECTION("heterocache") {
    static std::vector<head_profile> profile;
    but_for_rounding(20, [](random_source& r, cache_shape const& shape) {
      profile.clear();
      for (std::int64_t i = 0; i < shape.layers * shape.kv_heads; ++i) {
        bool const first = i % shape.kv_heads == 0;
        profile.push_back({.role = first ? head_role::pivot : head_role::satellite,
                           .pivot = first ? -1 : 0,
                           .stability = .1f + std::abs(r.real())});
      }
      return presets::heterocache{.heads = profile,
                                  .tokens = some(r, 24, 36),
                                  .full_share = .6,
                                  .window = 3,
                                  .every = 3,
                                  .observe = 4,
                                  .least = 6,
                                  .after = 0};
    });
  }
}

}  // namespace
}  // namespace kvpolicy_test
