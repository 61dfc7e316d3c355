// Rows in a tier: what a step reads was fetched from there, and the results are those of the engine's own cells.
#include "kvpolicy/interop/llama.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "decoding.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "kvpolicy/tier/host.hpp"
#include "kvpolicy/tier/same_memory.hpp"
#include "tiny_model.hpp"
#ifdef KVPOLICY_TEST_DISK
#include "kvpolicy/tier/disk.hpp"
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
  return {.heads = profile, .tokens = 96, .window = 3, .every = 3, .drift = .9f, .observe = 4};
}
presets::sentencekv sentencekv() {
  static std::vector<std::uint8_t> const none(256);  // no token ends a sentence: the longest do
  return {.tokens = 64, .keep = 2, .sentences = {.boundary = none, .longest = 16}};
}
auto snapkv_then_quest() {
  return policy{presets::snapkv{.tokens = 160}.parts().retain, presets::quest{.tokens = 64}.parts().retrieve};
}

class tiers {
 public:
  tiers() {
    std::string name = (std::filesystem::temp_directory_path() / "kvpolicy-llama-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = name;
  }
  tiers(tiers const&) = delete;
  tiers& operator=(tiers const&) = delete;
  ~tiers() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::vector<std::string> names() const {
#ifdef KVPOLICY_TEST_DISK
    return {"same_memory", "host", "disk"};
#else
    return {"same_memory", "host"};
#endif
  }
  tier::any_tier make(std::string const& name) const {
#ifdef KVPOLICY_TEST_DISK
    if (name == "disk")
      return tier::any_tier::of<tier::disk>((folder_ / "rows").string(), block_bytes, blocks,
                                            tier::disk_options{.sync = false});
#endif
    return name == "host" ? tier::any_tier::of<tier::host>(block_bytes, blocks)
                          : tier::any_tier::of<tier::same_memory>(block_bytes, blocks);
  }

 private:
  std::filesystem::path folder_;
};

/// Beside the logits.
struct observed {
  tier::resident_statistics tier{};
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
  policy.tell([&](told, char const* what, double value) { seen->policy[what] = value; });
  return all;
}

/// Once with slots for twice what is read, once with few. Returns what the policy told.
template <class Policy>
std::map<std::string, double> check_same_results(Policy const& preset, std::int64_t few) {
  std::vector<logits> const expected = decode_twice(preset, {});
  tiers made;
  observed seen;
  for (std::string const& name : made.names()) {
    for (std::int64_t const slots : {std::int64_t{0}, few}) {
      CAPTURE(name, slots);
      tier::any_tier rows = made.make(name);
      seen = {};
      CHECK(identical(decode_twice(preset, {.own_rows = true, .rows = &rows, .resident = {.slots = slots}}, &seen), expected));
      tier::resident_statistics const& counted = seen.tier;
      CHECK(counted.bytes_stored > 0);
      CHECK((slots == 0 || slots == 400 || counted.bytes_fetched > 0));  // 400: all of a prompt
      CHECK(counted.bytes_fetched == (counted.wanted - counted.hits) * block_bytes);
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
  whole.watch = budget::by_head_role::watched::whole;
  whole.tokens = 300;
  whole.full_share = .5;
  std::map<std::string, double> const told = check_same_results(whole, 400);
  CHECK(told.at("whole_heads") == 1);
  CHECK(told.at("following_heads") == 1);
  CHECK(told.at("fetches") > 0);
}
TEST_CASE("with rows in a tier, and waits, sentencekv's results are those of the engine's cells") {
  check_same_results(sentencekv(), 80);
}
TEST_CASE("with rows in a tier, and waits, a composition's results are those of the engine's cells") {
  check_same_results(snapkv_then_quest(), 80);
}

TEST_CASE("with rows in a tier, and no waits, a step reads what is there and goes on") {
  tiers made;
  for (std::string const& name : made.names()) {
    CAPTURE(name);
    tier::any_tier rows = made.make(name);
    observed seen;
    auto const steps = decode_twice(sentencekv(), {.own_rows = true, .rows = &rows, .resident = {.wait = false}}, &seen);
    REQUIRE(steps.size() == 80);
    for (logits const& step : steps) {
      CHECK(std::ranges::all_of(step, [](float x) { return std::isfinite(x); }));
    }
    CHECK(seen.stalled == 0);
  }
}

TEST_CASE("a tier without room is the decode's error, and the session goes on") {
  model_owner const model = tiny_llama(shape);
  tier::any_tier rows = tier::any_tier::of<tier::host>(block_bytes, 100);
  session policy(sentencekv(), {.own_rows = true, .rows = &rows});
  decoder ours(model.get(), &policy, {.tokens = context});
  CHECK_THROWS_AS((ours.feed(random_tokens(400)), ours.feed(random_tokens(1, 3))), error);
  policy.use(presets::full{});  // reads all that there is, so that nothing goes to the tier
  session other(presets::full{}, {.own_rows = true});
  decoder alone(model.get(), &other, {.tokens = context});
  ours.clear();
  CHECK(identical(ours.feed(random_tokens(50)), alone.feed(random_tokens(50))));
}

}  // namespace kvpolicy::llama::testing
