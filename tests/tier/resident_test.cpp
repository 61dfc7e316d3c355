#include "kvpolicy/tier/resident.hpp"

#include <array>
#include <catch2/catch_template_test_macros.hpp>

#include "kvpolicy/tier/resident_options.hpp"
#include "tier/blocks.hpp"

using namespace kvpolicy_test;

namespace {

constexpr std::int64_t layers = 2;
constexpr std::int64_t heads = 2;
constexpr std::array contiguous_layouts{layout::head_major, layout::token_major, layout::paged_nhd, layout::paged_hnd};

cache_shape shape_of(random_source& random) {
  return {.layers = layers,
          .q_heads = heads,
          .kv_heads = heads,
          .head_dim = random.between(1, 9),
          .max_tokens = 96,
          .type = random.pick(types)};
}
std::int64_t blocks_of(cache_shape const& shape) { return shape.layers * shape.kv_heads * shape.max_tokens; }

/// Bytes of a row in a view against those in the resident rows; false where the resident rows have none.
bool same_row(rows const& from, rows const& resident, std::int64_t h, std::int32_t t) {
  if (resident.indices[h * resident.index_stride + t] < 0) return false;
  auto const bytes = static_cast<std::size_t>(from.head_dim * size_of(from.type));
  return std::memcmp(from.address({h}, {t}), resident.address({h}, {t}), bytes) == 0;
}

template <class Tier>
bool readable_whole(tier::resident_rows<Tier> const& resident, own_view const& view, layer_id layer, selection const& read) {
  for (std::int64_t h = 0; h < heads; ++h) {
    for (token_range const& range : read.of({h})) {
      for (std::int32_t t = range.begin; t < range.end; ++t) {
        if (t >= view.tokens() || !same_row(view.keys(layer), resident.keys(layer), h, t) ||
            !same_row(view.values(layer), resident.values(layer), h, t)) {
          return false;
        }
      }
    }
  }
  return true;
}

/// One request: prompts, which tokens of them are kept, and what steps want to read.
class request {
 public:
  request(random_source& random, layout how)
      : random_(&random), cache_(shape_of(random), how, random.between(1, 9), random), kept_(layers * heads) {}

  random_cache const& cache() const { return cache_; }
  own_view view() const { return {&cache_, tokens_}; }
  std::int64_t prompt() const { return prompt_; }
  bool full() const { return tokens_ >= cache_.shape().max_tokens; }
  void step() { ++tokens_; }

  template <class Tier>
  void new_prompt(tier::resident_rows<Tier>& resident, std::int64_t most) {
    cache_.fill(0, cache_.shape().max_tokens, *random_);
    prompt_ = tokens_ = random_->between(1, most);
    for (std::int64_t l = 0; l < layers; ++l) {
      for (std::int64_t h = 0; h < heads; ++h) {
        range_list& list = kept_[static_cast<std::size_t>(l * heads + h)];
        list.clear();
        for (std::int64_t t = 0; t < prompt_; ++t) {
          if (!random_->one_in(5)) append(list, t, t + 1, reason::scored);
        }
      }
      resident.store(view(), {l}, {scope::head, std::span(kept_).subspan(static_cast<std::size_t>(l * heads), heads), heads});
    }
  }

  /// Up to `most` tokens of what a head keeps of the prompt, and any of those since.
  selection wanted(layer_id layer, std::int64_t most) {
    lists_.resize(heads);
    for (std::int64_t h = 0; h < heads; ++h) {
      range_list& list = lists_[static_cast<std::size_t>(h)];
      list.clear();
      range_list const& kept = kept_[static_cast<std::size_t>(layer.value * heads + h)];
      std::int64_t left = random_->between(0, most);
      for (token_range const& range : kept) {
        for (std::int32_t t = range.begin; t < range.end && left > 0; ++t) {
          if (!random_->one_in(3)) continue;
          append(list, t, t + 1, random_->one_in(4) ? reason::sink : reason::scored);
          --left;
        }
      }
      for (std::int64_t t = prompt_; t < tokens_; ++t) {
        if (!random_->one_in(4)) append(list, t, t + 1, reason::recent);
      }
    }
    return {scope::head, lists_, heads};
  }

  bool of_prompt(std::int32_t token) const { return token < prompt_; }

 private:
  random_source* random_;
  random_cache cache_;
  std::vector<range_list> kept_;
  std::vector<range_list> lists_;
  std::int64_t prompt_ = 0;
  std::int64_t tokens_ = 0;
};

/// Prompt tokens of a selection, and those of them that are in fast memory.
template <class Tier>
std::pair<std::int64_t, std::int64_t> counted(tier::resident_rows<Tier> const& resident, request const& r, layer_id layer,
                                              selection const& kept) {
  std::int64_t wanted = 0;
  std::int64_t there = 0;
  rows const keys = resident.keys(layer);
  for (std::int64_t h = 0; h < heads; ++h) {
    for (token_range const& range : kept.of({h})) {
      for (std::int32_t t = range.begin; t < range.end; ++t) {
        if (!r.of_prompt(t)) continue;
        ++wanted;
        there += keys.indices[h * keys.index_stride + t] >= 0 ? 1 : 0;
      }
    }
  }
  return {wanted, there};
}

bool same_lists(selection const& a, selection const& b) {
  for (std::int64_t h = 0; h < heads; ++h) {
    if (a.of({h}) != b.of({h})) return false;
  }
  return true;
}

constexpr std::int64_t prompt_at_most = 60;
constexpr std::int64_t steps_at_most = 24;
constexpr std::int64_t wanted_at_most = 8;

}  // namespace

TEMPLATE_TEST_CASE("a step that waits reads the view's rows bit for bit", "", of_fake, of_same_memory, of_host, of_any_tier) {
  for (std::uint64_t seed = 1; seed <= (quick_build ? 150u : 15u); ++seed) {
    random_source random(seed);
    request r(random, random.pick(contiguous_layouts));
    cache_shape const shape = r.cache().shape();
    using rows_of_tier = tier::resident_rows<decltype(TestType::tier)>;
    TestType made(rows_of_tier::block_bytes(shape), blocks_of(shape), seed);
    // Unlimited, or so few that what was read least recently has to go.
    std::int64_t const slots = random.one_in(3) ? 0 : wanted_at_most + steps_at_most + random.between(0, 4);
    {
      rows_of_tier resident(made.tier, shape, {.request = seed, .slots = slots});
      for (int prompts = 0; prompts < 4; ++prompts) {
        r.new_prompt(resident, prompt_at_most);
        for (std::int64_t steps = random.between(1, steps_at_most); steps > 0 && !r.full(); --steps) {
          r.step();
          for (layer_id layer{0}; layer.value < layers; ++layer.value) {
            selection const kept = r.wanted(layer, wanted_at_most);
            auto const [wanted, there] = counted(resident, r, layer, kept);
            tier::resident_statistics const before = resident.statistics();
            selection const read = resident.ready(r.view(), layer, kept);
            check(same_lists(read, kept), "a step that waits does not read what was chosen");
            check(readable_whole(resident, r.view(), layer, read), "a row is not the view's");
            auto const now = resident.statistics() - before;
            check(now.wanted == wanted, "the rows that were wanted are miscounted");
            // The row of the current token may push one out.
            check(now.hits <= there && now.hits >= there - (slots == 0 ? 0 : heads), "hits are miscounted");
            check(now.bytes_fetched == (wanted - now.hits) * rows_of_tier::block_bytes(shape), "bytes are miscounted");
          }
        }
        check(adds_up(made.tier), "free, resident and in flight do not add up to the capacity");
      }
    }
    check(made.tier.occupied().resident == 0, "blocks stay in the tier after their request");
  }
}

TEMPLATE_TEST_CASE("a step that does not wait reads only what is there, and in the end all of it", "", of_fake, of_host) {
  std::int64_t late = 0;
  for (std::uint64_t seed = 1; seed <= (quick_build ? 150u : 15u); ++seed) {
    random_source random(seed);
    request r(random, random.pick(contiguous_layouts));
    cache_shape const shape = r.cache().shape();
    using rows_of_tier = tier::resident_rows<decltype(TestType::tier)>;
    TestType made(rows_of_tier::block_bytes(shape), blocks_of(shape), seed);
    // What was read last, what is on its way and what is wanted.
    std::int64_t const slots = random.one_in(2) ? 0 : 3 * wanted_at_most + steps_at_most;
    rows_of_tier resident(made.tier, shape, {.request = seed, .slots = slots, .wait = false});
    for (int prompts = 0; prompts < 4; ++prompts) {
      r.new_prompt(resident, prompt_at_most);
      for (std::int64_t steps = random.between(1, steps_at_most); steps > 0 && !r.full(); --steps) {
        r.step();
        for (layer_id layer{0}; layer.value < layers; ++layer.value) {
          selection const kept = r.wanted(layer, wanted_at_most);
          selection read = resident.ready(r.view(), layer, kept);
          check(readable_whole(resident, r.view(), layer, read), "a row that is to be read is not the view's");
          late += same_lists(read, kept) ? 0 : 1;
          for (int tries = 0; slots == 0 && steps % 5 == 0 && !same_lists(read, kept); ++tries) {
            check(tries < 100'000, "a selection that stays is never read");
            read = resident.ready(r.view(), layer, kept);
            check(readable_whole(resident, r.view(), layer, read), "a row that is to be read is not the view's");
          }
        }
      }
    }
  }
  if (std::is_same_v<TestType, of_fake>) CHECK(late > 100);
}

TEST_CASE("with too few slots a step refuses, or what it reads is there") {
  for (bool const wait : {true, false}) {
    std::int64_t refused = 0;
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      CAPTURE(wait, seed);
      random_source random(seed);
      request r(random, layout::head_major);
      cache_shape const shape = r.cache().shape();
      fake_tier made(tier::resident_rows<fake_tier>::block_bytes(shape), blocks_of(shape), {.seed = seed});
      tier::resident_rows<fake_tier> resident(made, shape, {.slots = random.between(1, 24), .wait = wait});
      r.new_prompt(resident, prompt_at_most);
      for (int steps = 0; steps < 12; ++steps) {
        r.step();
        for (layer_id layer{0}; layer.value < layers; ++layer.value) {
          selection const kept = r.wanted(layer, wanted_at_most);
          try {
            selection const read = resident.ready(r.view(), layer, kept);
            check(readable_whole(resident, r.view(), layer, read), "a row that is to be read is not the view's");
          } catch (kvpolicy::invalid_value const&) {
            ++refused;
          }
        }
      }
    }
    CHECK(refused > 0);
  }
}

TEST_CASE("a get that missed is an error of the step, and the next step reads on") {
  for (bool const wait : {true, false}) {
    std::int64_t lost = 0;
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
      random_source random(seed);
      request r(random, layout::head_major);
      cache_shape const shape = r.cache().shape();
      fake_tier made(tier::resident_rows<fake_tier>::block_bytes(shape), blocks_of(shape), {.seed = seed});
      tier::resident_rows<fake_tier> resident(made, shape, {.slots = 0, .wait = wait});
      r.new_prompt(resident, prompt_at_most);
      made.options().gets_missed_one_in = 4;
      for (int steps = 0; steps < 12; ++steps) {
        r.step();
        for (layer_id layer{0}; layer.value < layers; ++layer.value) {
          selection const kept = r.wanted(layer, wanted_at_most);
          try {
            selection const read = resident.ready(r.view(), layer, kept);
            check(readable_whole(resident, r.view(), layer, read), "a row that is to be read is not the view's");
          } catch (kvpolicy::error const&) {
            ++lost;
          }
        }
      }
    }
    CHECK(lost > 100);
  }
}

TEST_CASE("a block that is gone from the tier is an error, not a row of something else") {
  random_source random(1);
  request r(random, layout::token_major);
  cache_shape const shape = r.cache().shape();
  tier::host made(tier::resident_rows<tier::host>::block_bytes(shape), blocks_of(shape));
  tier::resident_rows<tier::host> resident(made, shape, {.request = 9});
  r.new_prompt(resident, prompt_at_most);
  r.step();
  selection kept = r.wanted({0}, wanted_at_most);
  while (kept.of({0}).empty() || !r.of_prompt(kept.of({0}).front().begin)) kept = r.wanted({0}, wanted_at_most);
  drop_one(made, {9, 0, 0, kept.of({0}).front().begin, 1});
  CHECK_THROWS_AS(resident.ready(r.view(), {0}, kept), kvpolicy::error);
}

TEST_CASE("a tier that does not deliver is an error after the deadline") {
  random_source random(2);
  request r(random, layout::head_major);
  cache_shape const shape = r.cache().shape();
  fake_tier made(tier::resident_rows<fake_tier>::block_bytes(shape), blocks_of(shape), {.never = true});
  tier::resident_rows<fake_tier> resident(made, shape, {.deadline = std::chrono::milliseconds(20)});
  r.new_prompt(resident, prompt_at_most);
  r.step();
  selection kept = r.wanted({0}, wanted_at_most);
  while (kept.of({0}).empty() || !r.of_prompt(kept.of({0}).front().begin)) kept = r.wanted({0}, wanted_at_most);
  CHECK_THROWS_AS(resident.ready(r.view(), {0}, kept), kvpolicy::error);
  CHECK_THROWS_AS(resident.ready(r.view(), {0}, kept), kvpolicy::error);
  CHECK(resident.statistics().stall_seconds >= .03);
  made.options().never = false;  // it wakes up
  selection const read = resident.ready(r.view(), {0}, kept);
  CHECK(readable_whole(resident, r.view(), {0}, read));
}

TEST_CASE("a get that never ends holds neither the next prompt nor the destructor, and may still write when it does") {
  random_source random(5);
  request r(random, layout::head_major);
  cache_shape const shape = r.cache().shape();
  fake_tier made(tier::resident_rows<fake_tier>::block_bytes(shape), blocks_of(shape), {.never = true});
  {
    tier::resident_rows<fake_tier> resident(made, shape, {.wait = false, .deadline = std::chrono::milliseconds(20)});
    r.new_prompt(resident, prompt_at_most);
    r.step();
    selection kept = r.wanted({0}, wanted_at_most);
    while (kept.of({0}).empty() || !r.of_prompt(kept.of({0}).front().begin)) kept = r.wanted({0}, wanted_at_most);
    selection const read = resident.ready(r.view(), {0}, kept);
    CHECK(readable_whole(resident, r.view(), {0}, read));
    REQUIRE(made.occupied().in_flight > 0);
    CHECK_THROWS_AS(r.new_prompt(resident, prompt_at_most), kvpolicy::error);
  }
  made.options().never = false;
  for (int polls = 0; made.occupied().in_flight > 0 && polls < 1000; ++polls) made.run();
  CHECK(made.occupied().in_flight == 0);
}

TEST_CASE("a tier without room, or with blocks of another size, is refused") {
  random_source random(3);
  request r(random, layout::head_major);
  cache_shape const shape = r.cache().shape();
  std::int64_t const bytes = tier::resident_rows<fake_tier>::block_bytes(shape);
  fake_tier other(bytes + 1, 4);
  CHECK_THROWS_AS((tier::resident_rows<fake_tier>(other, shape, {})), kvpolicy::invalid_value);
  fake_tier small(bytes, 1);
  {
    tier::resident_rows<fake_tier> resident(small, shape, {});
    bool refused = false;
    for (int tries = 0; tries < 20; ++tries) {
      try {
        r.new_prompt(resident, prompt_at_most);
      } catch (kvpolicy::error const&) {
        refused = true;
      }
      CHECK(adds_up(small));
    }
    CHECK(refused);
  }
  CHECK(small.occupied().resident == 0);
}

TEST_CASE("values that are transposed are gathered or refused, and never read wrongly") {
  random_source random(4);
  request r(random, layout::transposed);
  while (r.cache().shape().head_dim < 2) r = request(random, layout::transposed);
  cache_shape const shape = r.cache().shape();
  fake_tier made(tier::resident_rows<fake_tier>::block_bytes(shape), blocks_of(shape));
  tier::resident_rows<fake_tier> resident(made, shape, {});
  std::vector<float> expected(static_cast<std::size_t>(shape.head_dim));
  std::vector<float> found(expected.size());
  try {
    r.new_prompt(resident, prompt_at_most);
    r.step();
    selection const read = resident.ready(r.view(), {0}, r.wanted({0}, wanted_at_most));
    for (token_range const& range : read.of({0})) {
      for (std::int32_t t = range.begin; t < range.end; ++t) {
        r.view().values({0}).load({0}, {t}, expected);
        resident.values({0}).load({0}, {t}, found);
        check(found == expected, "a transposed row was read wrongly");
      }
    }
  } catch (kvpolicy::error const&) {
    SUCCEED("refused");
  }
}
