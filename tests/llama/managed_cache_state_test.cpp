// States of a managed cache: what is saved in one session goes on in another as it would have here, or is refused.
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kvpolicy/kvpolicy.hpp"
#include "kvpolicy/store/row_store.hpp"
#include "kvpolicy/tiers/host.hpp"
#include "managed_cache_context.hpp"

namespace kvpolicy::llama::testing {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr tiny_shape shape{};
constexpr context_options few_cells{.tokens = 256, .batch = 128, .micro_batch = 128};
constexpr std::int64_t prompt = 220;

std::vector<logits> steps(owner& with, std::int64_t count, std::int64_t from, std::uint64_t seed) {
  std::vector<logits> all;
  for (llama_token const token : random_tokens(count, seed))
    all.push_back(with.feed({token}, 0, static_cast<llama_pos>(from++)));
  return all;
}

/// What remembers from step to step: a running mean of the queries' first elements, that nobody saves.
struct forgetful {
  static constexpr signals needs = signals::keys | signals::queries;
  static constexpr scope granularity = scope::head;
  static constexpr scored of = scored::tokens;
  struct memory : no_memory {
    static constexpr bool hears_steps = true;
    float mean = 0;
  };
  static memory start(cache_shape const&) { return {}; }
  template <class Input, executor Exec>
  void watch(Input const& input, Exec&) const {
    input.memory.mean += input.queries.head(0)[0];
  }
  template <class Input, executor Exec>
  void score(Input const& input, table<float> out, Exec&) const {
    for (std::int64_t h = 0; h < out.rows; ++h) {
      for (std::int64_t t = 0; t < out.columns; ++t) out(h, t) = input.memory.mean;
    }
  }
};

/// Saved after a prompt and `before` steps; the next ones are the same in the session that goes on and in one that loads, after
/// a prompt more where the policy can do that.
template <class Policy>
std::size_t goes_on(Policy const& policy, bool second_prompt = false, bool tiered = false) {
  std::size_t bytes = 0;
  for (std::int64_t const before : {0, 1, 23}) {
    CAPTURE(before);
    std::array<std::optional<tiers::any_tier>, 2> tiers;
    auto const options = [&](std::size_t which) {
      managed_cache made{.longest = 1024};
      if (!tiered) return made;
      tiers[which].emplace(tiers::any_tier::of<tiers::host>(2 * shape.head_dim * 2, 4 * 1024));
      made.tier = &*tiers[which];
      made.resident.slots = 90;
      return made;
    };
    owner here(policy, few_cells, options(0));
    here.feed(random_tokens(prompt), 0, 0);
    steps(here, before, prompt, 5);
    std::vector<std::byte> const state = here.own().save_state("the policy");
    bytes = state.size();
    owner there(policy, few_cells, options(1));
    if (before == 1) there.feed(random_tokens(30), 0, 0);  // in place of what is there, or into a context that has not run
    llama_memory_clear(there.engine().memory(), true);
    there.own().load_state(state, "the policy");
    std::int64_t const from = prompt + before;
    CHECK(identical(steps(there, 30, from, 6), steps(here, 30, from, 6)));
    if (!tiered) CHECK(there.own().memory().rows == here.own().memory().rows);
    if (tiered) CHECK(there.own().tier_statistics().bytes_fetched > 0);
    if (!second_prompt) continue;
    auto const more = [&](owner& with) {
      with.feed(random_tokens(60, 8), 0, static_cast<llama_pos>(from + 30));
      return steps(with, 10, from + 90, 9);
    };
    CHECK(identical(more(there), more(here)));
  }
  return bytes;
}

constexpr std::array profile{head_profile{.role = head_role::pivot, .stability = .3f},
                             head_profile{.role = head_role::satellite, .pivot = 0, .stability = .3f},
                             head_profile{.role = head_role::anchor, .stability = .9f},
                             head_profile{.role = head_role::shifting, .stability = .2f}};
presets::heterocache heterocache() {
  return {.heads = profile, .tokens = 60, .window = 3, .every = 3, .drift = .9f, .observe = 4, .after = 0};
}
presets::sentencekv sentencekv() {
  return {.tokens = 48, .keep = 2, .sentences = {.boundary = ends_by_length(), .longest = 12}, .after = 0};
}
presets::chess chess() {
  return {.fractions = {.tokens = 32}, .units = {.page = 4, .pages_per_chunk = 4}, .entropy = 1, .varentropy = .1f, .rest = 3};
}

}  // namespace

TEST_CASE("a saved state goes on in another session as in its own: policies that retain") {
  SECTION("snapkv") {
    std::size_t const bytes = goes_on(presets::snapkv{.tokens = 24, .after = 0}, true);
    std::size_t const rows = 24 * 2 * 2 * row_store::row_bytes({.layers = 2, .head_dim = shape.head_dim}, element_type::f16);
    CHECK(bytes > rows);
    CHECK(bytes < goes_on(presets::full{}) / 2);
  }
  SECTION("adakv") { goes_on(presets::adakv{.tokens = 24, .after = 0}, true); }
  SECTION("chunkkv") { goes_on(presets::chunkkv{.tokens = 24, .chunk = 4, .after = 0}); }
  SECTION("lagkv") { goes_on(presets::lagkv{.tokens = 24, .lag = 8}, true); }
  SECTION("expected_attention") { goes_on(presets::expected_attention{.tokens = 24}); }
}
TEST_CASE("a saved state goes on in another session as in its own: policies that evict") {
  SECTION("streaming_llm") { goes_on(presets::streaming_llm{.tokens = 24}, true); }
  SECTION("tova") { goes_on(presets::tova{.tokens = 24}); }
  SECTION("h2o") { goes_on(presets::h2o{.tokens = 24}); }
}
TEST_CASE("a saved state goes on in another session as in its own: policies that retrieve") {
  SECTION("full") { goes_on(presets::full{}, true); }
  SECTION("quest") { goes_on(presets::quest{.tokens = 24, .page = 4}, true); }
  SECTION("chess") { goes_on(chess(), true); }
  SECTION("infllm") { goes_on(presets::infllm{.tokens = 32, .block = 8, .representatives = 2, .local = 12}); }
  SECTION("sentencekv") { goes_on(sentencekv()); }
  SECTION("heterocache") { goes_on(heterocache()); }
  SECTION("snapkv, then quest") {
    goes_on(presets::snapkv{.tokens = 60, .after = 0} + presets::quest{.tokens = 24, .page = 4}, true);
  }
}
TEST_CASE("a saved state goes on in another session as in its own: rows in a tier") {
  SECTION("quest") { goes_on(presets::quest{.tokens = 24, .page = 4}, true, true); }
  SECTION("chess") { goes_on(chess(), true, true); }
}

TEST_CASE("a state that is damaged, cut or of something else is refused by name, and the session goes on") {
  presets::snapkv const policy{.tokens = 24, .after = 0};
  managed_cache const options{.longest = 1024};
  owner here(policy, few_cells, options);
  here.feed(random_tokens(prompt), 0, 0);
  steps(here, 3, prompt, 5);
  std::vector<std::byte> const state = here.own().save_state("snapkv:tokens=24");
  auto const refused = [&](owner& by, std::vector<std::byte> const& of, std::string const& policy_text, char const* why) {
    CHECK_THROWS_WITH(by.own().load_state(of, policy_text), ContainsSubstring(why));
    CHECK_THROWS_AS(by.own().load_state(of, policy_text), invalid_value);
  };
  refused(here, state, "snapkv:tokens=25", "another policy: 'snapkv:tokens=24', here it is 'snapkv:tokens=25'");
  refused(here, {}, "snapkv:tokens=24", "cut");
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> other = state;
    other[random() % other.size()] ^= static_cast<std::byte>(1 << random() % 8);
    CHECK_THROWS_AS(here.own().load_state(other, "snapkv:tokens=24"), invalid_value);
    other = state;
    other.resize(random() % other.size());
    CHECK_THROWS_AS(here.own().load_state(other, "snapkv:tokens=24"), invalid_value);
  }
  // Nothing of that has changed anything.
  owner there(policy, few_cells, options);
  there.own().load_state(state, "snapkv:tokens=24");
  CHECK(identical(steps(there, 5, prompt + 3, 6), steps(here, 5, prompt + 3, 6)));

  owner of_other_length(policy, few_cells, {.longest = 512});
  refused(of_other_length, state, "snapkv:tokens=24", "another cache");
  owner of_other_model(policy, few_cells, options, {.layers = 3});
  refused(of_other_model, state, "snapkv:tokens=24", "another model");
  model_owner const model = tiny_llama(shape);
  session without(policy);
  CHECK_THROWS_AS(without.save_state("x"), unsupported);
  session before_attach(policy, {.cache = managed_cache{}});
  CHECK_THROWS_AS(before_attach.load_state(state, "x"), invalid_value);
}

TEST_CASE("a state under the name of another policy does not fit, and leaves an empty sequence") {
  owner here(presets::snapkv{.tokens = 24, .after = 0}, few_cells, {.longest = 1024});
  here.feed(random_tokens(prompt), 0, 0);
  steps(here, 3, prompt, 5);
  std::vector<std::byte> const state = here.own().save_state("one");
  owner there(presets::quest{.tokens = 24, .page = 4}, few_cells, {.longest = 1024});
  there.feed(random_tokens(50), 0, 0);
  CHECK_THROWS_AS(there.own().load_state(state, "one"), invalid_value);
  CHECK(there.own().memory(0).rows == 0);
  llama_memory_clear(there.engine().memory(), true);
  owner fresh(presets::quest{.tokens = 24, .page = 4}, few_cells, {.longest = 1024});
  CHECK(identical(there.feed(random_tokens(90), 0, 0), fresh.feed(random_tokens(90), 0, 0)));
  CHECK(identical(steps(there, 5, 90, 6), steps(fresh, 5, 90, 6)));
  // Before the first decode it is that which fails.
  owner not_begun(presets::quest{.tokens = 24, .page = 4}, few_cells, {.longest = 1024});
  not_begun.own().load_state(state, "one");
  CHECK(not_begun.status_of(random_tokens(1), 0, static_cast<llama_pos>(prompt + 3)) == 2);
  CHECK_THROWS_AS(not_begun.own().check(), invalid_value);
}

TEST_CASE("a state that was loaded and not begun is saved, copied and begun as what it is") {
  presets::quest const policy{.tokens = 24, .page = 4};
  context_options two = few_cells;
  two.sequences = 2;
  two.unified = true;
  owner here(policy, few_cells, {.longest = 1024});
  here.feed(random_tokens(prompt), 0, 0);
  steps(here, 3, prompt, 5);
  std::vector<std::byte> const state = here.own().save_state("quest");
  std::vector<logits> const expected = steps(here, 5, prompt + 3, 6);
  owner there(policy, two, {.longest = 1024});
  there.own().load_state(state, "quest");
  CHECK(there.own().save_state("quest") == state);
  CHECK_THROWS_AS(there.own().use(presets::quest{.tokens = 24, .page = 8}), invalid_value);
  there.own().copy(0, 1);
  // Without positions, decode() counts on from the state, in a copy too, and again where the first decode has failed.
  std::vector<logits> made;
  llama_token const first = random_tokens(5, 6).front();
  made.push_back(there.feed({first}, 1));
  CHECK(made.front() == expected.front());
  CHECK(there.feed({first}, 0) == expected.front());
  llama_memory_clear(there.engine().memory(), true);
  there.own().end(1);
  there.own().load_state(state, "quest");
  there.own().copy(0, 1);
  CHECK(there.feed({first}, 1) == expected.front());
}

TEST_CASE("a first decode behind a state that fails is made again, where the state ends") {
  presets::quest const policy{.tokens = 24, .page = 4};
  owner here(policy, few_cells, {.longest = 1024});
  here.feed(random_tokens(prompt), 0, 0);
  std::vector<std::byte> const state = here.own().save_state("quest");  // no step yet: the first one puts rows away
  logits const expected = here.feed({5}, 0, prompt);
  tiers::any_tier rows = tiers::any_tier::of<tiers::host>(2 * shape.head_dim * 2, 10);
  owner there(policy, few_cells, {.longest = 1024, .tier = &rows});
  there.own().load_state(state, "quest");
  for (int i = 0; i < 2; ++i) {
    CHECK(there.status_of({5}) == 2);
    CHECK_THROWS_WITH(there.own().check(), ContainsSubstring("has no room"));
    CHECK(there.own().memory(0).rows >= prompt * 4);
  }
  there.own().use(presets::full{});
  owner other(presets::full{}, few_cells, {.longest = 1024});
  other.feed(random_tokens(prompt), 0, 0);
  CHECK(there.feed({5}) == other.feed({5}, 0, prompt));
  CHECK(expected.size() == there.feed({6}).size());
}

TEST_CASE("of two states one of which finds no memory the other is there") {
  presets::full const policy{};
  context_options two = few_cells;
  two.sequences = 2;
  two.unified = true;
  owner here(policy, few_cells, {.longest = 1024});
  here.feed(random_tokens(prompt), 0, 0);
  std::vector<std::byte> const state = here.own().save_state("full");
  std::int64_t const bytes = here.own().memory().bytes;
  logits const expected = here.feed({5}, 0, prompt);
  owner there(policy, two, {.longest = 1024, .memory = bytes + bytes / 2});
  there.own().load_state(state, "full", 0);
  there.own().load_state(state, "full", 1);
  CHECK(there.status_of({5}, 0) == 2);
  CHECK_THROWS_WITH(there.own().check(), ContainsSubstring("exhausted"));
  there.own().end(1);
  CHECK(there.feed({5}, 0) == expected);
}

TEST_CASE("a state of sentences goes on where its rows are in a tier, whatever sentence is open") {
  std::vector<std::uint8_t> boundary(256);
  for (std::size_t t = 0; t < boundary.size(); t += 9) boundary[t] = 1;
  presets::sentencekv const policy{.tokens = 24, .keep = 8, .sentences = {.boundary = boundary, .longest = 100}, .after = 0};
  for (std::int64_t const before : {2, 40, 90}) {
    CAPTURE(before);
    owner here(policy, few_cells, {.longest = 1024});
    here.feed(random_tokens(prompt), 0, 0);
    steps(here, before, prompt, 5);
    std::vector<std::byte> const state = here.own().save_state("sentencekv");
    tiers::any_tier rows = tiers::any_tier::of<tiers::host>(2 * shape.head_dim * 2, 4 * 1024);
    owner there(policy, few_cells, {.longest = 1024, .tier = &rows});
    there.own().load_state(state, "sentencekv");
    CHECK(identical(steps(there, 40, prompt + before, 6), steps(here, 40, prompt + before, 6)));
  }
}

TEST_CASE("an empty sequence is a state too") {
  owner here(presets::snapkv{.tokens = 24, .after = 0}, few_cells, {.longest = 1024});
  std::vector<std::byte> const state = here.own().save_state("one");
  here.feed(random_tokens(50), 0, 0);
  here.own().load_state(state, "one");
  llama_memory_clear(here.engine().memory(), true);
  CHECK(here.own().memory().rows == 0);
  here.feed(random_tokens(50), 0, 0);
}

TEST_CASE("a policy of one's own that remembers, and does not say what of it lasts, is not saved") {
  policy const own{keep_all{}, keep{segments::tokens{}, pools::none{}, forgetful{}, budgets::tokens{32}, selectors::top{},
                                    windows::tokens{.recent = 4}, triggers::every_step{}}};
  owner here(own, few_cells, {.longest = 1024});
  here.feed(random_tokens(prompt), 0, 0);
  steps(here, 3, prompt, 5);
  CHECK_THROWS_WITH(here.own().save_state("own"), ContainsSubstring("its scorer remembers has no archive()"));
  steps(here, 3, prompt + 3, 5);
}

}  // namespace kvpolicy::llama::testing
