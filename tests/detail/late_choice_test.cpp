#include "kvpolicy/detail/late_choice.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>

#include "conformance/random_cache.hpp"
#include "conformance/rounds.hpp"
#include "kvpolicy/any_policy.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr cache_shape shape{.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 8, .max_tokens = 160};
constexpr std::int64_t query_row = shape.q_heads * shape.head_dim;

/// A sequence of random rows with a query for each token and layer, as an engine has them.
struct sequence {
  explicit sequence(random_source& random)
      : cache(shape, random.pick(layouts), 16, random, content::plain),
        queries(random.reals(shape.layers * shape.max_tokens * query_row, 3)) {
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.between(0, 9));
  }

  query_window window(std::int64_t layer, std::int64_t count, std::int64_t tokens) const {
    std::int64_t const first = tokens - std::min(count, tokens);
    return {queries.data() + (layer * shape.max_tokens + first) * query_row,
            tokens - first,
            shape.q_heads,
            query_row,
            shape.head_dim,
            .5f};
  }
  template <class State>
  void prefill(State& state, std::int64_t tokens, std::int64_t first = 0) {
    prefill(state, tokens, first, exec);
  }
  template <class State, class Exec>
  void prefill(State& state, std::int64_t tokens, std::int64_t first, Exec& on) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      std::span const told = std::span<std::int32_t const>(ids).first(static_cast<std::size_t>(tokens));
      state.prefill(
          own_view{&cache, tokens}, {l},
          {.first = first, .queries = window(l, 8, tokens), .token_ids = told.subspan(static_cast<std::size_t>(first))}, on);
    }
  }
  /// The step that brings token `tokens - 1`.
  template <class State>
  std::vector<std::vector<range_list>> step(State& state, std::int64_t tokens) {
    return step(state, tokens, exec);
  }
  template <class State, class Exec>
  std::vector<std::vector<range_list>> step(State& state, std::int64_t tokens, Exec& on) {
    std::vector<std::vector<range_list>> all;
    state.cut(tokens - 1);
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      query_window const one = window(l, 1, tokens);
      selection const kept =
          state.choose(own_view{&cache, tokens}, {l},
                       {{one.data, one.heads, one.head_stride, one.scale}, ids[static_cast<std::size_t>(tokens - 1)]}, on);
      all.emplace_back(kept.lists().begin(), kept.lists().end());
    }
    return all;
  }

  random_cache cache;
  std::vector<float> queries;
  std::array<std::int32_t, shape.max_tokens> ids{};
  host_exec exec;
};

bool is_everything(std::vector<std::vector<range_list>> const& kept, std::int64_t tokens) {
  for (auto const& lists : kept) {
    for (range_list const& list : lists) {
      if (token_count(list) != tokens) return false;
    }
  }
  return true;
}

/// The tokens of each layer's lists, whatever the reason why they are read.
std::vector<std::vector<std::int32_t>> tokens_of(std::vector<std::vector<range_list>> const& kept) {
  std::vector<std::vector<std::int32_t>> all;
  for (auto const& lists : kept) {
    for (range_list const& list : lists) {
      std::vector<std::int32_t>& tokens = all.emplace_back();
      for (token_range const& range : list) {
        for (std::int32_t t = range.begin; t < range.end; ++t) tokens.push_back(t);
      }
    }
  }
  return all;
}

template <class Policy>
void waits_and_decides_as_if_the_prompt_were_longer(Policy late) {
  random_source random(20261124);
  for (int round = 0; round < rounds_of(60); ++round) {
    late.after = static_cast<std::int32_t>(random.between(1, 12));
    if constexpr (requires { late.units; }) late.units.page = static_cast<std::int32_t>(random.between(2, 8));
    else if constexpr (requires { late.page; }) late.page = static_cast<std::int32_t>(random.between(2, 8));
    else if constexpr (requires { late.observe; }) late.observe = static_cast<std::int32_t>(random.between(1, 8));
    else late.window = static_cast<std::int32_t>(random.between(1, 8));
    Policy at_once = late;
    at_once.after = 0;
    sequence of(random);
    std::int64_t const prompt = random.between(60, 120);
    std::int64_t const decided = prompt + late.after;
    auto const compare = [&](auto const& waits, auto const& decides) {
      auto state = start(waits, shape);
      of.prefill(state, prompt);
      CHECK(state.retained({0}).tokens() == prompt * shape.kv_heads);
      for (std::int64_t t = prompt + 1; t < decided; ++t) {
        REQUIRE(is_everything(of.step(state, t), t));
        REQUIRE(state.always_read({0}, 0) == all_tokens);
        if (random.one_in(8)) {  // the tail is removed and comes again
          for (std::int64_t again = random.between(prompt, t - 1) + 1; again <= t; ++again) of.step(state, again);
        }
      }
      REQUIRE(state.waits({1}));
      auto const kept = of.step(state, decided);
      REQUIRE(!state.waits({1}));
      auto longer = start(decides, shape);
      of.prefill(longer, decided);
      for (std::int64_t l = 0; l < shape.layers; ++l)
        REQUIRE(std::ranges::equal(state.retained({l}).lists(), longer.retained({l}).lists()));
      REQUIRE(tokens_of(of.step(longer, decided)) == tokens_of(kept));
      for (std::int64_t t = decided + 1; t < decided + 20; ++t)
        REQUIRE(tokens_of(of.step(state, t)) == tokens_of(of.step(longer, t)));
    };
    compare(late, at_once);
    if constexpr (requires { late + presets::quest{}; }) {
      presets::quest const pages{.tokens = 24, .page = 4};
      compare(late + pages, at_once + pages);
      using view = own_view;
      compare(erase<view, host_exec>(late + pages), erase<view, host_exec>(at_once + pages));
    }
  }
}

TEST_CASE("a retain that waits decides as if the answer's first tokens had been the prompt's") {
  SECTION("snapkv") { waits_and_decides_as_if_the_prompt_were_longer(presets::snapkv{.tokens = 40, .sinks = 2}); }
  SECTION("adakv") { waits_and_decides_as_if_the_prompt_were_longer(presets::adakv{.tokens = 40}); }
  SECTION("pyramidkv") { waits_and_decides_as_if_the_prompt_were_longer(presets::pyramidkv{.tokens = 40}); }
  SECTION("chunkkv, layers that follow another") {
    waits_and_decides_as_if_the_prompt_were_longer(presets::chunkkv{.tokens = 40, .layers = {.reuse = 2}});
  }
  SECTION("quest, which retains everything") { waits_and_decides_as_if_the_prompt_were_longer(presets::quest{.tokens = 40}); }
  SECTION("chess, whose one choice is made before a step's first layer") {
    constexpr float never = std::numeric_limits<float>::infinity();
    waits_and_decides_as_if_the_prompt_were_longer(
        presets::chess{.fractions = {.tokens = 40}, .entropy = never, .varentropy = never, .every = 3, .pre_rope = false});
  }
  SECTION("sentencekv, whose retrieve remembers the prompt's end") {
    static constexpr std::array<std::uint8_t, 10> boundary{0, 0, 0, 0, 1};
    waits_and_decides_as_if_the_prompt_were_longer(
        presets::sentencekv{.tokens = 24, .keep = 2, .sentences = {.boundary = boundary, .longest = 20, .shortest = 2}});
  }
  SECTION("heterocache, whose retrieve chooses at the prompt's end") {
    std::array<head_profile, 6> heads{};
    for (std::size_t i = 0; i < heads.size(); i += 2) {
      heads[i] = {.role = head_role::pivot, .stability = .5f};
      heads[i + 1] = {.role = head_role::satellite, .pivot = 0, .stability = .4f};
    }
    waits_and_decides_as_if_the_prompt_were_longer(
        presets::heterocache{.heads = heads, .tokens = 24, .full_share = .9, .drift = .9f, .least = 8});
  }
}

TEST_CASE("a prompt that goes on waits anew, and what was dropped stays dropped where rows are gone") {
  random_source random(7);
  sequence of(random);
  auto state = start(presets::snapkv{.tokens = 20, .after = 2}, shape);
  of.prefill(state, 60);
  of.step(state, 61);
  of.step(state, 62);
  CHECK(state.retained({0}).tokens() == 20 * shape.kv_heads);
  std::vector<std::vector<range_list>> there;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    there.emplace_back(state.retained({l}).lists().begin(), state.retained({l}).lists().end());
    for (range_list& list : there.back()) append(list, 62, 90, reason::open);
  }
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    state.prefill(own_view{&of.cache, 90}, {l},
                  {.first = 62, .queries = of.window(l, 8, 90), .resident = there[static_cast<std::size_t>(l)]}, of.exec);
  }
  CHECK(state.retained({0}).tokens() == 48 * shape.kv_heads);
  of.step(state, 91);
  of.step(state, 92);
  CHECK(state.retained({0}).tokens() == 20 * shape.kv_heads);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (token_range const& kept : state.retained({l}).of({h})) {
        for (std::int64_t t = kept.begin; t < std::min<std::int64_t>(kept.end, 62); ++t) {
          bool was_there = false;
          for (token_range const& range : there[static_cast<std::size_t>(l)][static_cast<std::size_t>(h)])
            was_there = was_there || (range.begin <= t && t < range.end);
          CHECK(was_there);
        }
      }
    }
  }
}

TEST_CASE("a state that is saved while it waits goes on waiting where it is read") {
  random_source random(11);
  sequence of(random);
  auto const policy = presets::snapkv{.tokens = 20, .after = 5};
  auto first = start(policy, shape);
  of.prefill(first, 60);
  of.step(first, 61);
  std::vector<std::byte> bytes;
  state_writer writer(bytes);
  first.archive(writer);
  auto second = start(policy, shape);
  state_reader reader(bytes);
  second.archive(reader);
  for (std::int64_t t = 62; t < 70; ++t) REQUIRE(of.step(first, t) == of.step(second, t));
  CHECK(second.retained({0}).tokens() == 24 * shape.kv_heads);
}

/// Fails in the nth call for scores from now on.
struct failing_exec : host_exec {
  int calls_left = -1;
  void window_attention(query_window const& queries, rows const& keys, smoothing smooth, table<float> scores) {
    if (calls_left == 0) throw error("the device is gone");
    --calls_left;
    host_exec::window_attention(queries, keys, smooth, scores);
  }
};

TEST_CASE("a choice that fails when it is due is made again by the step that is begun again") {
  random_source random(23);
  for (int fails_at = 0; fails_at < shape.layers; ++fails_at) {
    sequence of(random);
    auto const policy = presets::snapkv{.tokens = 30, .after = 4} + presets::quest{.tokens = 16, .page = 4};
    auto whole = start(policy, shape);
    auto failed = start(policy, shape);
    failing_exec exec;
    for (auto* const state : {&whole, &failed}) {
      of.prefill(*state, 80, 0, exec);
      for (std::int64_t t = 81; t < 84; ++t) of.step(*state, t, exec);
    }
    exec.calls_left = fails_at;
    CHECK_THROWS_AS(of.step(failed, 84, exec), error);
    CHECK(failed.retained({fails_at}).tokens() == 84 * shape.kv_heads);
    exec.calls_left = -1;
    for (std::int64_t t = 84; t < 90; ++t) REQUIRE(tokens_of(of.step(failed, t, exec)) == tokens_of(of.step(whole, t, exec)));
  }
}

/// A window scorer that would have one list for all layers.
struct one_list : scorers::window_attention {
  static constexpr scope granularity = scope::request;
};

TEST_CASE("what can't wait is refused by name") {
  auto const says = [](auto const& policy, std::string const& what) {
    try {
      check(policy, shape);
    } catch (invalid_value const& e) {
      return std::string(e.what()).find(what) != std::string::npos;
    }
    return false;
  };
  CHECK(says(presets::snapkv{.tokens = 20, .after = -1}, "after is -1"));
  CHECK(says(presets::quest{.tokens = 40, .after = -1}, "after is -1"));
  CHECK_THROWS_WITH((presets::snapkv{.tokens = 60} + presets::quest{.tokens = 40, .after = 2}),
                    ContainsSubstring("only the retain can wait"));
  auto keydiff = presets::keydiff{.tokens = 20}.parts();
  keydiff.retain.trigger.after = 4;
  CHECK(says(keydiff, "reads no queries of the answer"));
  CHECK_THROWS_WITH(check(presets::snapkv{.tokens = 20} + presets::infllm{.tokens = 40, .block = 8}, shape),
                    ContainsSubstring("every query"));
  policy const same_in_all_layers{keep{segments::tokens{}, pools::none{}, one_list{}, budgets::tokens{20}, selectors::top{},
                                       windows::tokens{.recent = 8}, triggers::prefill{4}},
                                  keep_all{}};
  CHECK_THROWS_WITH(check(same_in_all_layers, shape), ContainsSubstring("the same tokens in all layers"));
}

/// A choice that was made by tokens of an answer waits again where the answer is cut: the same answer again reads the same.
template <class Policy>
void waits_again(Policy const& policy, bool drops) {
  random_source random(20261125);
  for (int round = 0; round < rounds_of(20); ++round) {
    sequence of(random);
    auto state = start(policy, shape);
    std::int64_t const prompt = random.between(60, 100);
    of.prefill(state, prompt);
    std::vector<std::vector<std::vector<std::int32_t>>> first;
    for (std::int64_t t = prompt + 1; t <= prompt + 20; ++t) first.push_back(tokens_of(of.step(state, t)));
    REQUIRE_FALSE(state.waits({0}));
    std::int64_t const there = state.retained({1}).tokens() / shape.kv_heads;
    REQUIRE((there < prompt + 20) == drops);
    REQUIRE(state.undoes_choice(prompt + 7));
    REQUIRE_FALSE(state.undoes_choice(prompt + 8));
    state.cut(prompt);
    static_cast<void>(of.step(state, prompt + 1));
    REQUIRE(state.waits({0}));
    // Rows that were dropped are gone: all that is left is read.
    REQUIRE(state.kept({1}).tokens() == state.retained({1}).tokens());
    if (drops) of.prefill(state, prompt, prompt);  // the engine has them still, and says so
    for (std::int64_t t = prompt + 1; t <= prompt + 20; ++t)
      REQUIRE(tokens_of(of.step(state, t)) == first[static_cast<std::size_t>(t - prompt - 1)]);
  }
}

TEST_CASE("a choice that waited waits again where the answer is cut") {
  SECTION("a retain") { waits_again(presets::snapkv{.tokens = 40, .after = 8}, true); }
  SECTION("a retrieve") { waits_again(presets::quest{.tokens = 24, .page = 4, .after = 8}, false); }
  SECTION("both") { waits_again(presets::snapkv{.tokens = 40, .after = 8} + presets::quest{.tokens = 24, .page = 4}, true); }
  SECTION("chosen at run time") { waits_again(erase<own_view, host_exec>(presets::snapkv{.tokens = 40, .after = 8}), true); }
}

TEST_CASE("a choice that is made of what an earlier one left knows of no more") {
  random_source random(20261126);
  sequence of(random);
  auto state = start(presets::snapkv{.tokens = 40, .after = 8}, shape);
  of.prefill(state, 90);
  for (std::int64_t t = 91; t <= 100; ++t) of.step(state, t);
  std::vector<range_list> const left(state.retained({1}).lists().begin(), state.retained({1}).lists().end());
  for (std::int64_t t = 91; t <= 105; ++t) of.step(state, t);
  for (std::size_t h = 0; h < left.size(); ++h) {
    range_list const& now = state.retained({1}).lists()[h];
    for (token_range const& range : now) {
      for (std::int32_t t = range.begin; t < std::min(range.end, 90); ++t) {
        REQUIRE(std::ranges::any_of(left[h], [&](token_range const& r) { return r.begin <= t && t < r.end; }));
      }
    }
  }
}

TEST_CASE("queries are kept by their tokens, a removed tail's are replaced") {
  observed_queries kept(1, 6, shape);
  std::vector<float> values(static_cast<std::size_t>(4 * query_row));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  kept.begin(0, {values.data(), 3, shape.q_heads, query_row, shape.head_dim, .5f}, 10);
  query_heads const next{values.data() + 3 * query_row, shape.q_heads, shape.head_dim, .5f};
  kept.add(0, next, 10);
  CHECK(kept.last(0, 9).tokens == 4);
  CHECK(*kept.last(0, 1).at(0, 0) == values[static_cast<std::size_t>(3 * query_row)]);
  kept.add(0, next, 8);  // tokens 8 and 9 came again
  CHECK(kept.last(0, 9).tokens == 2);
  CHECK(*kept.last(0, 2).at(0, 0) == 0);
  kept.add(0, next, 3);  // before all that is known
  CHECK(kept.last(0, 9).tokens == 1);
}

}  // namespace
}  // namespace kvpolicy_test
