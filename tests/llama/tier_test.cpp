// Rows in a tier: what a step reads was fetched from there, and the results are those of the engine's own cells.
#include "kvpolicy/interop/llama.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "conformance/scratch_folder.hpp"
#include "decoding.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "kvpolicy/tiers/host.hpp"
#include "tiers/same_memory.hpp"
#include "tiny_model.hpp"
#ifdef KVPOLICY_TEST_DISK
#include "kvpolicy/tiers/disk.hpp"
#endif

namespace kvpolicy::llama::testing {
namespace {

constexpr tiny_shape shape{};
constexpr std::int64_t context = 1024;
constexpr std::int64_t block_bytes = 2 * shape.head_dim * 2;
constexpr std::int64_t blocks = shape.layers * shape.kv_heads * context;

// A pivot with its satellite in one layer, heads that need everything or little in the other.
constexpr std::array profile{head_profile{.role = head_role::pivot, .stability = .3f},
                             head_profile{.role = head_role::satellite, .pivot = 0, .stability = .3f},
                             head_profile{.role = head_role::anchor, .stability = .9f},
                             head_profile{.role = head_role::shifting, .stability = .2f}};

presets::heterocache heterocache() {
  return {.heads = profile, .tokens = 96, .window = 3, .every = 3, .drift = .9f, .observe = 4, .after = 3};
}
presets::sentencekv sentencekv() {
  return {.tokens = 64, .keep = 2, .sentences = {.boundary = ends_by_length(), .longest = 16}, .after = 3};
}
auto snapkv_then_quest() {
  return policy{presets::snapkv{.tokens = 160, .after = 3}.parts().retain, presets::quest{.tokens = 64}.parts().retrieve};
}

class named_tiers {
 public:
  std::vector<std::string> names() const {
#ifdef KVPOLICY_TEST_DISK
    return {"same_memory", "host", "disk"};
#else
    return {"same_memory", "host"};
#endif
  }
  tiers::any_tier make(std::string const& name) const {
#ifdef KVPOLICY_TEST_DISK
    if (name == "disk")
      return tiers::any_tier::of<tiers::disk>(folder_.file("rows"), block_bytes, blocks, tiers::disk_options{.sync = false});
#endif
    return name == "host" ? tiers::any_tier::of<tiers::host>(block_bytes, blocks)
                          : tiers::any_tier::of<kvpolicy_test::same_memory>(block_bytes, blocks);
  }

 private:
  kvpolicy_test::scratch_folder folder_;
};

/// Beside the logits.
struct observed {
  tiers::resident_statistics tier{};
  double stalled = 0;  ///< what steps waited, in seconds, but each prompt's first, which may wait for the prompt before
  std::map<std::string, double> policy{};  ///< what it told
};

/// Two prompts, each with the tokens after it, one by one.
template <class Policy>
std::vector<logits> decode_twice(Policy const& preset, session_options options, observed* seen = nullptr) {
  model_owner const model = tiny_llama(shape);
  session policy(preset, std::move(options));
  decoder ours(model.get(), &policy, {.tokens = context});
  std::vector<logits> all;
  for (std::uint64_t const seed : {11u, 12u}) {
    ours.clear();
    ours.feed(random_tokens(400, seed));
    std::optional<double> before;
    for (llama_token const token : random_tokens(40, seed + 10)) {
      all.push_back(ours.feed(token));
      if (!before) before = policy.tier_statistics().stall_seconds;  // the first step takes its prompt in
    }
    if (seen != nullptr) seen->stalled += policy.tier_statistics().stall_seconds - *before;
  }
  if (seen == nullptr) return all;
  seen->tier = policy.tier_statistics();
  policy.visit_statistics([&](statistic, char const* what, double value) { seen->policy[what] = value; });
  return all;
}

/// Once with slots for twice what is read, once with few. Returns what the policy told.
template <class Policy>
std::map<std::string, double> check_same_results(Policy const& preset, std::int64_t few) {
  std::vector<logits> const expected = decode_twice(preset, {});
  named_tiers made;
  observed seen;
  for (std::string const& name : made.names()) {
    for (std::int64_t const slots : {std::int64_t{0}, few}) {
      CAPTURE(name, slots);
      tiers::any_tier rows = made.make(name);
      seen = {};
      CHECK(identical(decode_twice(preset, {.cache = managed_cache{.tier = &rows, .resident = {.slots = slots}}}, &seen),
                      expected));
      tiers::resident_statistics const& counted = seen.tier;
      CHECK(counted.bytes_stored > 0);
      CHECK((slots == 0 || slots == 400 || counted.bytes_fetched > 0));  // 400: all of a prompt
      if (requirements_of(preset).next_step) CHECK(counted.wanted - counted.hits < counted.bytes_fetched / block_bytes / 4);
      else CHECK(counted.bytes_fetched == (counted.wanted - counted.hits) * block_bytes);
      CHECK(rows.occupied().resident == 0);
    }
  }
  return seen.policy;
}

}  // namespace

TEST_CASE("with rows in a tier, and waits, heterocache's results are those of the engine's cells") {
  std::map<std::string, double> const told = check_same_results(heterocache(), 130);
  // 96 of 400 tokens can't pay for a whole head: the pivot follows itself, its satellite the pivot, the volatile head itself.
  CHECK(told.at("following_heads") == 3);
  CHECK(told.at("fixed_heads") == 1);
  CHECK(told.at("drifts") > 0);
  CHECK(told.at("fetches") > 0);
}
TEST_CASE("with rows in a tier, a pivot that is read whole has its satellite fetch") {
  presets::heterocache whole = heterocache();
  whole.watch = budgets::by_head_role::watched::whole;
  whole.tokens = 300;
  whole.full_share = .5;
  whole.after = 0;
  std::map<std::string, double> const told = check_same_results(whole, 400);
  CHECK(told.at("whole_heads") == 1);
  CHECK(told.at("following_heads") == 1);
  CHECK(told.at("fetches") > 0);
}
TEST_CASE("with rows in a tier, what the next step reads is fetched while this one runs") {
  presets::heterocache heads = heterocache();
  presets::sentencekv sentences = sentencekv();
  presets::quest pages{.tokens = 64, .after = 3};
  heads.next_step = sentences.next_step = pages.next_step = true;
  check_same_results(heads, 130);
  check_same_results(sentences, 80);
  check_same_results(pages, 80);
}
TEST_CASE("with rows in a tier, and waits, sentencekv's results are those of the engine's cells") {
  check_same_results(sentencekv(), 80);
}
TEST_CASE("with rows in a tier, and waits, a composition's results are those of the engine's cells") {
  check_same_results(snapkv_then_quest(), 80);
}

TEST_CASE("with rows in a tier, a choice for all layers that waited sends every layer's rows there") {
  tiers::any_tier rows = tiers::any_tier::of<tiers::host>(block_bytes, blocks);
  model_owner const model = tiny_llama(shape);
  session policy(presets::chess{.fractions = {.tokens = 64}, .after = 3}, {.cache = managed_cache{.tier = &rows}});
  decoder ours(model.get(), &policy, {.tokens = context});
  ours.feed(random_tokens(400, 11));
  decode_each(ours, random_tokens(2, 12));
  CHECK(policy.tier_statistics().bytes_stored == 0);
  decode_each(ours, random_tokens(2, 13));
  // 402 tokens were there before the choice; the last page's rows stay.
  CHECK(policy.tier_statistics().bytes_stored == (402 - 16) * shape.layers * shape.kv_heads * block_bytes);
}

namespace {

/// A prompt, steps, a cut to each place near the prompt's end, steps: as without a tier.
template <class Policy>
void check_cuts(Policy const& preset, std::initializer_list<llama_pos> cuts) {
  for (llama_pos const cut : cuts) {
    CAPTURE(cut);
    tiers::any_tier rows = tiers::any_tier::of<tiers::host>(block_bytes, blocks);
    std::vector<std::vector<logits>> both;
    for (tiers::any_tier* const where : {&rows, static_cast<tiers::any_tier*>(nullptr)}) {
      model_owner const model = tiny_llama(shape);
      session policy(preset, {.cache = managed_cache{.tier = where}});
      decoder ours(model.get(), &policy, {.tokens = context});
      ours.feed(random_tokens(412, 11));
      decode_each(ours, random_tokens(100, 12));
      REQUIRE(ours.cut(cut));
      both.push_back(decode_each(ours, random_tokens(20, 13)));
    }
    CHECK(identical(both[0], both[1]));
  }
}

}  // namespace

TEST_CASE("with rows in a tier, a cut near the prompt's end opens a unit whose rows are there") {
  check_cuts(presets::quest{.tokens = 64, .page = 16}, {300, 396, 398, 411, 412, 413, 500});
  check_cuts(presets::chess{.fractions = {.tokens = 64}, .every = 2}, {300, 396, 398, 412, 450});
  check_cuts(presets::chess{.fractions = {.tokens = 64}, .every = 2, .after = 3}, {300, 412, 414, 450});
  std::vector<std::uint8_t> boundary(256);
  boundary[static_cast<std::size_t>(random_tokens(412, 11).back())] = 1;  // the prompt ends a sentence
  check_cuts(presets::sentencekv{.tokens = 64, .keep = 6, .sentences = {.boundary = boundary, .longest = 24}, .after = 0},
             {412, 413});
}

TEST_CASE("with rows in a tier, another policy, and a step that is made again, see every layer") {
  presets::chess const chess{.fractions = {.tokens = 64}, .every = 2};
  tiers::any_tier rows = tiers::any_tier::of<tiers::host>(block_bytes, blocks);
  std::vector<std::vector<logits>> both;
  for (tiers::any_tier* const where : {&rows, static_cast<tiers::any_tier*>(nullptr)}) {
    model_owner const model = tiny_llama(shape);
    session policy(presets::quest{.tokens = 64}, {.cache = managed_cache{.tier = where}});
    decoder ours(model.get(), &policy, {.tokens = context});
    ours.feed(random_tokens(412, 11));
    both.push_back(decode_each(ours, random_tokens(60, 12)));
    policy.use(chess);
    for (logits const& step : decode_each(ours, random_tokens(20, 13))) both.back().push_back(step);
  }
  CHECK(identical(both[0], both[1]));
}

TEST_CASE("with rows in a tier, and no waits, a step reads what is there and goes on") {
  named_tiers made;
  for (std::string const& name : made.names()) {
    CAPTURE(name);
    tiers::any_tier rows = made.make(name);
    observed seen;
    auto const steps = decode_twice(sentencekv(), {.cache = managed_cache{.tier = &rows, .resident = {.wait = false}}}, &seen);
    REQUIRE(steps.size() == 80);
    for (logits const& step : steps) {
      CHECK(std::ranges::all_of(step, [](float x) { return std::isfinite(x); }));
    }
    CHECK(seen.stalled == 0);
  }
}

namespace {

/// Host memory that notes how often somebody waited for it.
struct watched_tier {
  tiers::host inner{llama::testing::block_bytes, blocks};
  std::int64_t* waited;

  explicit watched_tier(std::int64_t* count) : waited(count) {}
  std::int64_t block_bytes() const { return inner.block_bytes(); }
  std::int64_t capacity() const { return inner.capacity(); }
  bool put(std::span<tiers::block_write const> writes) { return inner.put(writes); }
  tiers::ticket get(std::span<tiers::block_read const> reads, bool waits) { return inner.get(reads, waits); }
  tiers::ticket get(std::span<tiers::block_read const> reads) { return inner.get(reads); }
  tiers::status poll(tiers::ticket id) { return inner.poll(id); }
  tiers::status wait(tiers::ticket id, tiers::clock::time_point deadline) {
    ++*waited;
    return inner.wait(id, deadline);
  }
  void drop(std::span<tiers::block_key const> keys) { inner.drop(keys); }
  tiers::usage occupied() { return inner.occupied(); }
};

}  // namespace

TEST_CASE("with rows in a tier, and no waits, no step waits for a get, not even of the step before") {
  std::int64_t waits = 0;
  tiers::any_tier rows = tiers::any_tier::of<watched_tier>(&waits);
  model_owner const model = tiny_llama(shape);
  session policy(presets::quest{.tokens = 64}, {.cache = managed_cache{.tier = &rows, .resident = {.wait = false}}});
  decoder ours(model.get(), &policy, {.tokens = context});
  ours.feed(random_tokens(400, 11));
  ours.feed(random_tokens(1, 12));
  waits = 0;
  decode_each(ours, random_tokens(60, 13));
  for (int more = 0; more < 100 && policy.tier_statistics().bytes_fetched == 0; ++more) {  // gets take their time
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ours.feed(random_tokens(1, 14));
  }
  CHECK(waits == 0);
  CHECK(policy.tier_statistics().bytes_fetched > 0);
}

TEST_CASE("a tier without room is the decode's error, and the session goes on") {
  model_owner const model = tiny_llama(shape);
  tiers::any_tier rows = tiers::any_tier::of<tiers::host>(block_bytes, 100);
  presets::sentencekv at_once = sentencekv();
  at_once.after = 0;
  session policy(at_once, {.cache = managed_cache{.tier = &rows}});
  decoder ours(model.get(), &policy, {.tokens = context});
  CHECK_THROWS_AS((ours.feed(random_tokens(400)), ours.feed(random_tokens(1, 3))), error);
  policy.use(presets::full{});  // reads all that there is, so that nothing goes to the tier
  session other(presets::full{}, {.cache = managed_cache{}});
  decoder alone(model.get(), &other, {.tokens = context});
  ours.clear();
  CHECK(identical(ours.feed(random_tokens(50)), alone.feed(random_tokens(50))));
}

}  // namespace kvpolicy::llama::testing
