#include <catch2/catch_test_macros.hpp>
#include <utility>

#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "methods/naive_infllm.hpp"
#include "methods/naive_sentencekv.hpp"

namespace kvpolicy_test::methods {
namespace {

/// One random request of a retain and a retrieve. `look(state, n, l, kept)` at every step and layer.
template <class Policy, class Look>
void run(Policy const& policy, world const& w, std::int64_t prompt, Look look) {
  cache_shape const& shape = w.shape;
  host_exec exec;
  auto state = start(policy, shape);
  for (std::int64_t l = 0; l < shape.layers; ++l) state.prefill(w.view(prompt), {l}, w.prompt(l, prompt), exec);
  for (std::int64_t n = prompt + 1; n <= std::min(shape.max_tokens, prompt + 10); ++n) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      selection const kept = state.choose(w.view(n), {l}, w.step(l, n), exec);
      look(state, n, l, kept);
    }
    state.observe({}, exec);
  }
}

/// What holds for every list of every composition.
void require_sound(ints const& got, ints const& there, std::int64_t n, std::int64_t most) {
  INFO("tokens " << n << " at most " << most << "\nthere " << text(there) << "\nread " << text(got));
  REQUIRE(ascends(got));
  REQUIRE(without(got, there).empty());
  REQUIRE((!got.empty() && got.back() == n - 1));
  REQUIRE(size_of(got) <= most);
}

/// A cache of one head's retained rows and nothing else.
struct compacted {
  cache_shape shape;
  random_cache cache;

  compacted(world const& w, std::int64_t l, std::int64_t h, ints const& there, random_source& random)
      : shape{1, w.group(), 1, w.shape.head_dim, 80, w.shape.type}, cache(shape, layout::head_major, 4, random) {
    for (std::int64_t r = 0; r < size_of(there); ++r) {
      for (std::int64_t d = 0; d < shape.head_dim; ++d) cache.set_key(0, 0, r, d, w.cache.key(l, h, at(there, r), d));
    }
  }
};

presets::quest random_quest(random_source& random) {
  auto const page = narrow(random.between(1, 5));
  return {.tokens = page * narrow(random.between(1, 3)), .page = page};
}

/// What quest alone reads where there is nothing but these tokens.
ints quest_alone(presets::quest const& policy, world const& w, std::int64_t l, std::int64_t h, std::int64_t n,
                 ints const& there, random_source& random) {
  compacted small(w, l, h, there, random);
  host_exec exec;
  auto state = start(policy, small.shape);
  std::int64_t const last = size_of(there) - 1;
  if (last > 0) state.prefill(own_view{&small.cache, last}, {0}, {}, exec);
  query_heads const queries = w.heads(l, n - 1).of({h, 1}, w.group());
  ints made;
  for (std::int64_t const rank : tokens_of(state.choose(own_view{&small.cache, last + 1}, {0}, {queries}, exec).of({0}))) {
    made.push_back(at(there, rank));
  }
  return made;
}

/// compare(world, random, tally) in world after world, until it has compared 5000 cases.
template <class Compare>
void in_many_worlds(std::uint64_t seed, std::int64_t least, Compare compare) {
  random_source random(seed);
  tally cases;
  while (cases.compared < 5000) {
    world const w(small_shape(random, 70), random);
    compare(w, random, cases);
  }
  cases.require(least);
}

template <class Retain>
void quest_over(std::uint64_t seed, Retain draw_retain) {
  in_many_worlds(seed, 5000, [&](world const& w, random_source& random, tally& cases) {
    auto const retain = draw_retain(w.shape, random);
    presets::quest const quest = random_quest(random);
    policy const both{retain.parts().retain, quest.parts().retrieve};
    if (!allowed(both, w.shape)) return;
    run(both, w, random.between(1, w.shape.max_tokens - 1),
        [&](auto& state, std::int64_t n, std::int64_t l, selection const& kept) {
          for (std::int64_t h = 0; h < w.shape.kv_heads; ++h) {
            ints const got = tokens_of(kept.of({h}));
            ints const there = tokens_of(state.retained({l}).of({h}));
            require_sound(got, there, n, quest.tokens);
            ints const want = quest_alone(quest, w, l, h, n, there, random);
            INFO("tokens " << n << " layer " << l << " head " << h << " page " << quest.page << " budget " << quest.tokens
                           << "\nthere " << text(there) << "\nread " << text(got) << "\nwant " << text(want));
            REQUIRE(got == want);
            cases.add(verdict::same);
          }
        });
  });
}

std::int32_t some_tokens(cache_shape const& shape, random_source& random) {
  return narrow(random.between(std::min<std::int64_t>(8, shape.max_tokens), shape.max_tokens));
}
constexpr auto draw_snapkv = [](cache_shape const& shape, random_source& random) {
  return presets::snapkv{.tokens = some_tokens(shape, random), .sinks = 1, .window = narrow(random.between(1, 6)), .after = 0};
};
constexpr auto draw_adakv = [](cache_shape const& shape, random_source& random) {
  return presets::adakv{.tokens = some_tokens(shape, random), .window = narrow(random.between(1, 6)), .after = 0};
};
constexpr auto draw_knorm = [](cache_shape const& shape, random_source& random) {
  return presets::knorm{.tokens = some_tokens(shape, random)};
};
constexpr auto draw_h2o = [](cache_shape const& shape, random_source& random) {
  return presets::h2o{.tokens = some_tokens(shape, random)};
};
constexpr auto draw_streaming = [](cache_shape const& shape, random_source& random) {
  return presets::streaming_llm{.tokens = some_tokens(shape, random), .sinks = narrow(random.between(0, 4))};
};

TEST_CASE("quest over snapkv reads what quest reads of the retained rows alone", "[methods]") { quest_over(1801, draw_snapkv); }
TEST_CASE("quest over adakv reads what quest reads of the retained rows alone", "[methods]") { quest_over(1802, draw_adakv); }
TEST_CASE("quest over knorm reads what quest reads of the retained rows alone", "[methods]") { quest_over(1803, draw_knorm); }
TEST_CASE("quest over h2o reads what quest reads of the rows that are left", "[methods]") { quest_over(1804, draw_h2o); }
TEST_CASE("quest over streaming_llm reads what quest reads of the rows that are left", "[methods]") {
  quest_over(1805, draw_streaming);
}

/// Sentences are those of all tokens; buckets hold what is there of them.
template <class Retain>
void sentences_over(std::uint64_t seed, Retain draw_retain) {
  in_many_worlds(seed, 4950, [&](world const& w, random_source& random, tally& cases) {
    auto const retain = draw_retain(w.shape, random);
    std::vector<std::uint8_t> boundary;
    for (int i = 0; i < 9; ++i) boundary.push_back(random.one_in(4) ? std::uint8_t{1} : std::uint8_t{0});
    boundary.push_back(1);
    presets::sentencekv const reader{
        .tokens = narrow(random.between(8, std::max<std::int64_t>(8, w.shape.max_tokens / 2))),
        .sinks = narrow(random.between(0, 3)),
        .window = narrow(random.between(1, 5)),
        .sentences = {.boundary = boundary, .longest = 14, .shortest = narrow(random.between(1, 4))},
        .standing =
            requirements_of(retain.parts().retain).evicts ? 0 : .75};  // what stood at the prompt's end is not told later
    policy const both{retain.parts().retain, reader.parts().retrieve};
    if (!allowed(both, w.shape)) return;
    std::int64_t const prompt = random.between(1, w.shape.max_tokens - 1);
    run(both, w, prompt, [&](auto& state, std::int64_t n, std::int64_t l, selection const& kept) {
      ints const ends = closed_sentences(w.ids, n, reader.sentences);
      std::int64_t const open = n - (ends.empty() ? 0 : ends.back());
      for (std::int64_t h = 0; h < w.shape.kv_heads; ++h) {
        ints const got = tokens_of(kept.of({h}));
        ints const there = tokens_of(state.retained({l}).of({h}));
        require_sound(got, there, n, reader.tokens + open);
        sentence_reading const want = read_sentences(w, l, h, n, prompt, there, reader);
        INFO("prompt " << prompt << " tokens " << n << " layer " << l << " head " << h << " tau " << reader.tokens
                       << "\nsentences " << text(ends) << "\nthere " << text(there) << "\nread " << text(got) << "\nwant "
                       << text(want.tokens));
        bool const fits = got == want.tokens || want.close;
        REQUIRE(fits);
        cases.add(got == want.tokens ? verdict::same : verdict::excused);
      }
    });
  });
}

TEST_CASE("sentences over snapkv are read by the buckets of what is there", "[methods]") { sentences_over(1811, draw_snapkv); }
TEST_CASE("sentences over adakv are read by the buckets of what is there", "[methods]") { sentences_over(1812, draw_adakv); }
TEST_CASE("sentences over knorm are read by the buckets of what is there", "[methods]") { sentences_over(1813, draw_knorm); }
TEST_CASE("sentences over h2o are read by the buckets of what is there", "[methods]") { sentences_over(1814, draw_h2o); }
TEST_CASE("sentences over streaming_llm are read by the buckets of what is there", "[methods]") {
  sentences_over(1815, draw_streaming);
}

TEST_CASE("one ranking a layer can't point at tokens that some heads do not have", "[methods]") {
  cache_shape const shape{2, 4, 2, 8, 200, element_type::f32};
  presets::infllm const infllm{.tokens = 64, .block = 8};
  auto const refused = [&](auto const& retain) {
    REQUIRE_THROWS_AS(start(policy{retain.parts().retain, infllm.parts().retrieve}, shape), unsupported);
  };
  refused(presets::snapkv{.tokens = 100, .after = 0});
  refused(presets::adakv{.tokens = 100, .after = 0});
  refused(presets::knorm{.tokens = 100});
  refused(presets::h2o{.tokens = 100});
  REQUIRE_NOTHROW(start(policy{presets::chunkkv{.tokens = 100, .after = 0}.parts().retain, infllm.parts().retrieve}, shape));
}

/// Where every token of a block represents it, a block's vector is the mean of its keys, whoever asked for them: blocks of what
/// is there, whole ones, by index.
template <class Retain>
void infllm_over(std::uint64_t seed, Retain draw_retain) {
  in_many_worlds(seed, 4900, [&](world const& w, random_source& random, tally& cases) {
    auto const block = narrow(random.between(2, 6));
    presets::infllm const infllm{.tokens = block * narrow(random.between(2, 5)),
                                 .block = block,
                                 .representatives = block,
                                 .local = narrow(random.between(1, 8)),
                                 .sink_blocks = narrow(random.between(0, 1)),
                                 .recent_blocks = 1};
    auto const retain = draw_retain(w.shape, random);
    policy const both{retain.parts().retain, infllm.parts().retrieve};
    if (!allowed(both, w.shape)) return;
    std::int64_t const prompt = random.between(1, w.shape.max_tokens - 1);
    run(both, w, prompt, [&](auto& state, std::int64_t n, std::int64_t l, selection const& kept) {
      ints const there = tokens_of(state.retained({l}).of({0}));
      ints const got = tokens_of(kept.of({0}));
      require_sound(got, there, n, infllm.tokens);
      ints ranks;
      for (std::int64_t r = 0; r < size_of(there); ++r) {
        if (std::binary_search(got.begin(), got.end(), at(there, r))) ranks.push_back(r);
      }
      page_plan const plan = plan_pages(size_of(there), block, infllm.sink_blocks, 1, infllm.tokens);
      reals scores;
      for (std::int64_t const u : plan.candidates) {
        ints const tokens(there.begin() + u * block, there.begin() + u * block + block);
        scores.push_back(block_score(w, infllm, l, filled(w.shape.kv_heads, tokens), n - 1));
      }
      range_list by_index;
      for (std::int64_t const r : ranks) append(by_index, r, r + 1, reason::scored);
      verdict const v = judge_pages(by_index, size_of(there), block, plan, scores, 1e-5 * largest_size(scores));
      INFO("prompt " << prompt << " tokens " << n << " layer " << l << " block " << block << " budget " << infllm.tokens
                     << "\nthere " << text(there) << "\nread " << text(got));
      REQUIRE(v != verdict::different);
      cases.add(v);
    });
  });
}

TEST_CASE("infllm over chunkkv reads the best blocks of what is there", "[methods]") {
  infllm_over(1821, [](cache_shape const& shape, random_source& random) {
    return presets::chunkkv{.tokens = some_tokens(shape, random), .chunk = 3, .window = 3, .after = 0};
  });
}
TEST_CASE("infllm is refused over what drops tokens at every step, and says why", "[methods]") {
  cache_shape const shape{1, 2, 1, 4, 64, element_type::f32};
  auto const blocks = presets::infllm{.tokens = 32, .block = 8}.parts().retrieve;
  REQUIRE_THROWS_AS(check(policy{presets::streaming_llm{.tokens = 48}.parts().retain, blocks}, shape), unsupported);
  REQUIRE_THROWS_AS(check(policy{presets::h2o{.tokens = 48}.parts().retain, blocks}, shape), unsupported);
  REQUIRE_NOTHROW(check(policy{presets::chunkkv{.tokens = 48, .after = 0}.parts().retain, blocks}, shape));
}

}  // namespace
}  // namespace kvpolicy_test::methods
