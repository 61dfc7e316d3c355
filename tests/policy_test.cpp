#include "kvpolicy/policy.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "conformance/history.hpp"
#include "conformance/tokens.hpp"
#include "kvpolicy/layer_table_view.hpp"
#include "kvpolicy/testing/random_cache.hpp"

namespace kvpolicy_test {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// The contract: at choose the current token's key is there for this layer, and for no layer behind it.
TEMPLATE_TEST_CASE("choose reads no key that is not written yet", "[policy]", quest_model, streaming_model, snapkv_model,
                   chess_model, layered_quest_model, adakv_model, chunkkv_model, h2o_model, tova_model, snapkv_quest_model) {
  random_source random(191);
  for (int round = 0; round < 60; ++round) {
    cache_shape shape = random_shape(random, 80, 3);
    shape.head_dim = random.between(1, 8);
    shape.max_tokens += 12;
    random_cache const complete = random_cache_of(shape, random);
    typename TestType::preset policy{};
    while (true) {
      policy = TestType::draw(shape, random);
      if constexpr (requires { policy.entropy; }) policy.entropy = -1;
      try {
        check(policy, shape);
        break;
      } catch (error const&) {
      }
    }
    random_cache partial = complete;
    std::int64_t const prompt = random.between(1, shape.max_tokens - 8);
    for (std::int64_t t = prompt; t < shape.max_tokens; ++t) {
      for (std::int64_t l = 0; l < 3; ++l) {
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          for (std::int64_t d = 0; d < shape.head_dim; ++d) partial.set_key(l, h, t, d, nan);
        }
      }
    }
    std::int64_t const observed = std::max<std::int64_t>(1, std::min(observation_queries(policy), prompt));
    std::vector<float> const queries = random.reals(observed * shape.q_heads * shape.head_dim);
    query_heads const heads{queries.data(), shape.q_heads, shape.head_dim, 1};
    query_window const window{queries.data(), observed, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, 1};
    host_exec exec;
    auto want = start(policy, shape);
    auto got = start(policy, shape);
    for (std::int64_t l = 0; l < 3; ++l) {
      want.prefill(own_view{&complete, prompt}, {l}, {0, window}, exec);
      got.prefill(own_view{&partial, prompt}, {l}, {0, window}, exec);
    }
    std::vector<float> const logits = random.reals(5);
    for (std::int64_t n = prompt + 1; n <= prompt + 8; ++n) {
      for (std::int64_t l = 0; l < 3; ++l) {
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          for (std::int64_t d = 0; d < shape.head_dim; ++d) partial.set_key(l, h, n - 1, d, complete.key(l, h, n - 1, d));
        }
        lists_copy const right = copy_of(want.choose(own_view{&complete, n}, {l}, {heads}, exec));
        INFO("round " << round << " layer " << l << " tokens " << n);
        REQUIRE(copy_of(got.choose(own_view{&partial, n}, {l}, {heads}, exec)) == right);
      }
      want.observe({logits}, exec);
      got.observe({logits}, exec);
    }
  }
}

// As llama.cpp's adapter does it: a layer's prompt is handed over right before that layer's first step.
TEMPLATE_TEST_CASE("prefill may come layer by layer, each right before the layer's first choose", "[policy]", quest_model,
                   streaming_model, snapkv_model, layered_quest_model, adakv_model, chunkkv_model, h2o_model, tova_model,
                   snapkv_quest_model) {
  random_source random(197);
  for (int round = 0; round < 60; ++round) {
    cache_shape shape = random_shape(random, 80, 3);
    shape.head_dim = random.between(1, 8);
    shape.max_tokens += 12;
    random_cache const cache = random_cache_of(shape, random);
    typename TestType::preset policy{};
    while (true) {
      policy = TestType::draw(shape, random);
      try {
        check(policy, shape);
        break;
      } catch (error const&) {
      }
    }
    std::int64_t const prompt = random.between(1, shape.max_tokens - 8);
    std::int64_t const observed = std::max<std::int64_t>(1, std::min(observation_queries(policy), prompt));
    std::vector<float> const queries = random.reals(observed * shape.q_heads * shape.head_dim);
    query_heads const heads{queries.data(), shape.q_heads, shape.head_dim, 1};
    query_window const window{queries.data(), observed, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, 1};
    host_exec exec;
    auto before = start(policy, shape);
    auto between = start(policy, shape);
    for (std::int64_t l = 0; l < 3; ++l) before.prefill(own_view{&cache, prompt}, {l}, {0, window}, exec);
    for (std::int64_t n = prompt + 1; n <= prompt + 8; ++n) {
      for (std::int64_t l = 0; l < 3; ++l) {
        if (n == prompt + 1) between.prefill(own_view{&cache, prompt}, {l}, {0, window}, exec);
        lists_copy const right = copy_of(before.choose(own_view{&cache, n}, {l}, {heads}, exec));
        INFO("round " << round << " layer " << l << " tokens " << n);
        REQUIRE(copy_of(between.choose(own_view{&cache, n}, {l}, {heads}, exec)) == right);
      }
    }
  }
}

TEST_CASE("a step on more tokens than the state was started for is refused, and one on none", "[policy]") {
  random_source random(192);
  random_cache const cache({1, 1, 1, 4, 40, element_type::f32}, layout::head_major, 8, random);
  host_exec exec;
  cache_shape const shorter{1, 1, 1, 4, 20, element_type::f32};
  presets::quest const policy{.tokens = 16, .page = 16, .sink_pages = 0};
  std::vector<float> const query(4, 1);
  auto state = start(policy, shorter);
  prefill_all(state, own_view{&cache, 19}, exec);
  REQUIRE_NOTHROW(state.choose(own_view{&cache, 20}, {0}, {query.data(), 1, 4, 1}, exec));
  REQUIRE_THROWS_AS(state.choose(own_view{&cache, 21}, {0}, {query.data(), 1, 4, 1}, exec), invalid_value);
  REQUIRE_THROWS_AS(state.choose(own_view{&cache, 0}, {0}, {query.data(), 1, 4, 1}, exec), invalid_value);
}

// 25 tokens still fit the two pages that 20 tokens need, so that nothing is overwritten if it is let through.
TEST_CASE("a prompt of more tokens than the state was started for is refused", "[policy]") {
  random_source random(193);
  random_cache const cache({1, 1, 1, 4, 40, element_type::f32}, layout::head_major, 8, random);
  host_exec exec;
  cache_shape const shorter{1, 1, 1, 4, 20, element_type::f32};
  presets::quest const policy{.tokens = 16, .page = 16, .sink_pages = 0};
  auto state = start(policy, shorter);
  REQUIRE_THROWS_AS(state.prefill(own_view{&cache, 25}, {0}, {}, exec), invalid_value);
}

TEST_CASE("a policy knows which of its rules decides", "[policy]") {
  REQUIRE_FALSE(requirements_of(presets::snapkv{.after = 0}.parts().retain).keeps_all);
  REQUIRE(requirements_of(presets::snapkv{.after = 0}.parts().retrieve).keeps_all);
  REQUIRE(requirements_of(presets::quest{}.parts().retain).keeps_all);
  REQUIRE(requirements_of(presets::full{}).keeps_all);
  REQUIRE_FALSE(requirements_of(presets::chess{}).keeps_all);
  STATIC_REQUIRE(snapkv_quest_model::preset::needs == (signals::keys | signals::queries | signals::observation_queries));
  STATIC_REQUIRE(std::same_as<parts_t<decltype(presets::quest{}.parts())>, parts_t<presets::quest>>);
}

TEST_CASE("a composed policy without a name runs as its preset does", "[policy]") {
  random_source random(194);
  cache_shape const shape{1, 4, 2, 8, 90, element_type::f16};
  random_cache const cache(shape, layout::paged_nhd, 8, random);
  presets::quest const named{.tokens = 32, .page = 8, .sink_pages = 1};
  policy const composed{
      keep_all{},
      keep{segments::pages{8}, pools::bounds{named.metadata}, scorers::upper_bound{named.group}, budgets::tokens{32},
           selectors::top{}, windows::pages{.size = 8, .sink_pages = 1, .recent_pages = 1}, triggers::every_step{}}};
  host_exec exec;
  auto one = start(named, shape);
  auto two = start(composed, shape);
  for (std::int64_t n = 1; n <= 90; ++n) {
    std::vector<float> const queries = random.reals(32);
    query_heads const heads{queries.data(), 4, 8, 1};
    lists_copy const lists = copy_of(one.choose(own_view{&cache, n}, {0}, {heads}, exec));
    REQUIRE(copy_of(two.choose(own_view{&cache, n}, {0}, {heads}, exec)) == lists);
  }
}

/// The rows of a few tokens of one KV head, moved together: a cache as if there had never been others.
random_cache compacted(random_cache const& from, std::int64_t l, std::int64_t h, range_list const& tokens,
                       random_source& random) {
  cache_shape shape = from.shape();
  shape = {1, shape.group(), 1, shape.head_dim, shape.max_tokens, shape.type};
  random_cache made(shape, layout::head_major, 8, random);
  std::int64_t rank = 0;
  for (token_range const& range : tokens) {
    for (std::int64_t t = range.begin; t < range.end; ++t, ++rank) {
      for (std::int64_t d = 0; d < shape.head_dim; ++d) made.set_key(0, 0, rank, d, from.key(l, h, t, d));
    }
  }
  return made;
}

TEMPLATE_TEST_CASE("quest on what another policy retains reads what it would of a cache that holds nothing else", "[policy]",
                   presets::snapkv, presets::adakv, presets::tova, presets::streaming_llm) {
  random_source random(195);
  bool fewer = false;
  for (int round = 0; round < 40; ++round) {
    cache_shape shape = random_shape(random, 90, 2);
    shape.head_dim = random.between(1, 9);
    shape.max_tokens += 30;
    random_cache const cache = random_cache_of(shape, random);
    auto const budget = static_cast<std::int32_t>(random.between(16, shape.max_tokens));
    presets::quest const quest{.tokens = static_cast<std::int32_t>(random.between(12, 30)),
                               .page = static_cast<std::int32_t>(random.between(1, 6)),
                               .sink_pages = static_cast<std::int32_t>(random.between(0, 1))};
    TestType retain{.tokens = budget};
    if constexpr (requires { retain.after; }) retain.after = 0;
    policy const both{retain.parts().retain, quest.parts().retrieve};
    host_exec exec;
    auto state = start(both, shape);
    std::int64_t const prompt = random.between(1, shape.max_tokens - 12);
    std::int64_t const observed = std::max<std::int64_t>(1, std::min(observation_queries(both), prompt));
    std::vector<float> const window = random.reals(observed * shape.q_heads * shape.head_dim);
    query_window const last{window.data(), observed, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, 1};
    for (std::int64_t l = 0; l < 2; ++l) state.prefill(own_view{&cache, prompt}, {l}, {.queries = last}, exec);
    for (std::int64_t n = prompt + 1; n <= prompt + 12; ++n) {
      std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim);
      for (std::int64_t l = 0; l < 2; ++l) {
        selection const kept = state.choose(own_view{&cache, n}, {l}, {queries.data(), shape.q_heads, shape.head_dim, 1}, exec);
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          range_list const& there = state.retained({l}).of({h});
          REQUIRE(within(kept.of({h}), there));
          fewer |= token_count(there) < n;
          random_cache const alone = compacted(cache, l, h, there, random);
          auto fresh = start(quest, alone.shape());
          query_heads const own{queries.data() + h * shape.group() * shape.head_dim, shape.group(), shape.head_dim, 1};
          std::vector<std::int64_t> const ids = tokens_of(there);
          std::vector<std::int64_t> want;
          prefill_all(fresh, own_view{&alone, std::ssize(ids) - 1}, exec);
          selection const by_index = fresh.choose(own_view{&alone, std::ssize(ids)}, {0}, {own}, exec);
          for (std::int64_t const rank : tokens_of(by_index.of({0}))) want.push_back(ids[static_cast<std::size_t>(rank)]);
          INFO("round " << round << " tokens " << n << " layer " << l << " head " << h);
          REQUIRE(tokens_of(kept.of({h})) == want);
        }
      }
    }
  }
  REQUIRE(fewer);
}

constexpr cache_shape two_layers{2, 4, 2, 8, 300, element_type::f16};

template <class Retain, class Retrieve>
auto pair_of(Retain const& retain, Retrieve const& retrieve) {
  return policy{retain.parts().retain, retrieve.parts().retrieve};
}

TEST_CASE("one choice for the request can't point at tokens that some heads or layers do not have", "[policy]") {
  presets::chess const chess{.units = {8, 2, 2}, .recent_pages = 1};
  REQUIRE_THROWS_AS(check(pair_of(presets::snapkv{.tokens = 64, .after = 0}, chess), two_layers), unsupported);
  REQUIRE_THROWS_WITH(check(pair_of(presets::snapkv{.tokens = 64, .after = 0}, chess), two_layers),
                      ContainsSubstring("for each head") && ContainsSubstring("one choice for each request") &&
                          ContainsSubstring("use a coarser retain"));
  REQUIRE_THROWS_WITH(start(pair_of(presets::tova{.tokens = 64}, chess), two_layers), ContainsSubstring("for each layer"));
  REQUIRE_THROWS_AS(check(pair_of(presets::snapkv{.tokens = 64, .after = 0}, presets::infllm{.tokens = 128}), two_layers),
                    unsupported);
  REQUIRE_NOTHROW(check(pair_of(presets::streaming_llm{.tokens = 64}, chess), two_layers));
  REQUIRE_NOTHROW(check(pair_of(presets::chunkkv{.tokens = 64, .after = 0}, presets::infllm{.tokens = 128}), two_layers));
  REQUIRE_NOTHROW(check(pair_of(presets::tova{.tokens = 64}, presets::quest{.tokens = 64}), two_layers));
}

TEST_CASE("a choice is not taken over by layers where other tokens were retained", "[policy]") {
  presets::quest const shared{.tokens = 64, .layers = {.reuse = 2}};
  REQUIRE_NOTHROW(check(shared, two_layers));
  REQUIRE_THROWS_AS(check(pair_of(presets::snapkv{.tokens = 64, .after = 0}, shared), two_layers), unsupported);
  REQUIRE_THROWS_WITH(check(pair_of(presets::tova{.tokens = 64}, shared), two_layers), ContainsSubstring("set `reuse` to 1"));
  REQUIRE_NOTHROW(check(pair_of(presets::streaming_llm{.tokens = 64}, shared), two_layers));
  REQUIRE_NOTHROW(check(
      pair_of(presets::snapkv{.tokens = 64, .layers = {.reuse = 2}, .after = 0}, presets::quest{.tokens = 64}), two_layers));
}

TEST_CASE("blocks that stand for tokens are not made of tokens that are evicted one by one", "[policy]") {
  presets::infllm const infllm{.tokens = 128};
  REQUIRE_THROWS_AS(check(pair_of(presets::tova{.tokens = 64}, infllm), two_layers), unsupported);
  REQUIRE_THROWS_WITH(check(pair_of(presets::streaming_llm{.tokens = 64}, infllm), two_layers),
                      ContainsSubstring("use a retain that decides once"));
}

TEST_CASE("each rule of two is checked by itself", "[policy]") {
  REQUIRE_THROWS_AS(check(pair_of(presets::snapkv{.tokens = 0, .after = 0}, presets::quest{.tokens = 64}), two_layers),
                    invalid_value);
  REQUIRE_THROWS_AS(check(pair_of(presets::snapkv{.tokens = 64, .after = 0}, presets::quest{.tokens = 0}), two_layers),
                    invalid_value);
}

// Every four steps; the choice stood since token 200 when the tail was taken away.
TEST_CASE("a choice that is due every few steps stays so after a tail was removed", "[policy]") {
  random_source random(196);
  cache_shape const shape{1, 1, 1, 2, 300, element_type::f32};
  random_cache cache(shape, layout::head_major, 8, random);
  presets::chess const policy{
      .fractions = {1, 1, .2f}, .units = {4, 2, 2}, .sink_pages = 0, .recent_pages = 1, .every = 4, .pre_rope = false};
  host_exec exec;
  auto state = start(policy, shape);
  state.prefill(own_view{&cache, 199}, {0}, {}, exec);
  auto const step = [&](std::int64_t n) {
    lists_copy const here = copy_of(state.choose(own_view{&cache, n}, {0}, {}, exec));
    state.observe({.logits = {}, .entropy = 0.0f}, exec);
    return here;
  };
  step(200);
  state.cut(100);
  cache.fill(100, 300, random);
  for (std::int64_t n = 101; n <= 104; ++n) step(n);
  int same = 0;
  for (std::int64_t n = 105; n <= 108; ++n) {
    lists_copy const here = step(n);
    auto fresh = start(policy, shape);
    fresh.prefill(own_view{&cache, n - 1}, {0}, {}, exec);
    same += copy_of(fresh.choose(own_view{&cache, n}, {0}, {}, exec)) == here ? 1 : 0;
  }
  REQUIRE(same >= 1);
}

// A row store's rows that were dropped have no page.
TEST_CASE("a verb that would read a row that was dropped is refused", "[policy]") {
  random_source random(192);
  cache_shape const shape{1, 2, 1, 8, 64, element_type::f32};
  random_cache const cache(shape, layout::paged_nhd, 1, random);
  std::vector<float> const vectors = random.reals(64 * 2 * 8);
  query_window const window{vectors.data(), 40, 2, 16, 8, .3f};
  host_exec exec;
  auto request = start(presets::tova{.tokens = 20}, shape);
  paged_view<> view = cache.in_pages(40);
  std::vector<std::int32_t> table(view.pages, view.pages + 64);
  view.pages = table.data();
  request.prefill(view, {0}, {.queries = window}, exec);
  std::int32_t const kept = request.retained({0}).of({0}).front().begin;
  std::int32_t const page = std::exchange(table[static_cast<std::size_t>(kept)], -1);
  CHECK_THROWS_WITH(request.choose(view.first(41), {0}, {.queries = window.token(0)}, exec),
                    ContainsSubstring("the retained keys of KV head 0 have no page"));
  table[static_cast<std::size_t>(kept)] = page;
  CHECK_NOTHROW(request.choose(view.first(41), {0}, {.queries = window.token(0)}, exec));
  table[3] = -1;
  range_list const all{{0, 50}};
  CHECK_THROWS_WITH(request.prefill(view.first(50), {0}, {.first = 41, .queries = window, .resident = {&all, 1}}, exec),
                    ContainsSubstring("prompt_signals::resident names of KV head 0 have no page"));
}

// The window of a prompt's last queries goes over the borders of its pieces.
TEST_CASE("a short last piece comes with the queries of earlier ones, or says that nobody kept them", "[policy]") {
  random_source random(193);
  cache_shape const shape{1, 2, 1, 8, 64, element_type::f32};
  random_cache const cache(shape, layout::head_major, 1, random);
  std::vector<float> const vectors = random.reals(64 * 2 * 8);
  auto const queries = [&](std::int64_t begin, std::int64_t end) {
    return query_window{vectors.data() + begin * 16, end - begin, 2, 16, 8, .3f};
  };
  presets::snapkv const policy{.tokens = 20, .window = 8, .after = 0};
  host_exec exec;
  auto whole = start(policy, shape);
  whole.prefill(own_view{&cache, 43}, {0}, {.queries = queries(35, 43)}, exec);
  auto request = start(policy, shape);
  request.prefill(own_view{&cache, 40}, {0}, {.queries = queries(32, 40)}, exec);
  CHECK_THROWS_WITH(request.prefill(own_view{&cache, 43}, {0}, {.first = 40, .queries = queries(40, 43)}, exec),
                    ContainsSubstring("of 3 tokens; the policy reads those of the prompt's last 8") &&
                        ContainsSubstring("or say in observed_from"));
  auto without = request;
  CHECK_NOTHROW(
      without.prefill(own_view{&cache, 43}, {0}, {.first = 40, .queries = queries(40, 43), .observed_from = 40}, exec));
  request.prefill(own_view{&cache, 43}, {0}, {.first = 40, .queries = queries(35, 43)}, exec);
  CHECK(tokens_of(request.retained({0}).of({0})) == tokens_of(whole.retained({0}).of({0})));
  request.choose(own_view{&cache, 44}, {0}, {}, exec);  // a step ends the prompt: the next one's queries are its own
  CHECK_NOTHROW(request.prefill(own_view{&cache, 46}, {0}, {.first = 44, .queries = queries(44, 46)}, exec));
}

// A policy that reads every token's logits would count the drafts without any as if they had not been decoded.
TEST_CASE("of a step of several tokens all that stay are observed, or none", "[policy]") {
  kvpolicy::testing::random_source random(194);
  cache_shape const shape{1, 2, 1, 8, 64, element_type::f32};
  kvpolicy::testing::random_cache const cache(shape, random, kvpolicy::testing::content::normal);
  host_exec exec;
  auto request = start(presets::chess{.fractions = {.tokens = 128}, .entropy = 1}, shape);
  kvpolicy::testing::random_signals const said(shape, random);
  request.prefill(cache.view(20), {0}, said.prompt(0, 20), exec);
  auto const step = [&](std::int64_t tokens, std::int64_t brought) {
    request.choose(cache.view(tokens), {0}, said.step(tokens, brought), exec);
  };
  step(24, 4);
  request.observe(said.outcome(21), exec);
  CHECK_THROWS_WITH(step(24, 1), ContainsSubstring("of the last step 3 tokens stayed, and 1 were observed"));
  CHECK_THROWS_AS(request.prefill(cache.view(30), {0}, said.prompt(23, 30), exec), invalid_value);
  request.observe(said.outcome(22), exec);
  request.observe(said.outcome(23), exec);
  CHECK_NOTHROW(step(24, 1));
}

// An engine may gather, or decode, the rows of one layer after the other into one buffer.
TEST_CASE("a view may show each layer in the same buffer", "[policy]") {
  random_source random(195);
  cache_shape const shape{2, 2, 1, 8, 64, element_type::f32};
  random_cache const cache(shape, layout::head_major, 1, random);
  std::vector<rows> const keys{cache.keys(0, 40), cache.keys(0, 40)};
  std::vector<rows> const values{cache.values(0, 40), cache.values(0, 40)};
  layer_table_view const view{shape, 40, keys.data(), values.data()};
  host_exec exec;
  auto request = start(presets::knorm{.tokens = 20}, shape);
  for (std::int64_t l = 0; l < 2; ++l) CHECK_NOTHROW(request.prefill(view, {l}, {}, exec));
}

TEST_CASE("rows of other tokens than the view's, and page tables that were not filled, are refused", "[policy]") {
  random_source random(196);
  cache_shape const shape{2, 2, 1, 8, 64, element_type::f32};
  random_cache const cache(shape, layout::paged_nhd, 8, random);
  paged_view<> view = cache.in_pages(40);
  std::vector<std::int32_t> table(view.pages, view.pages + 8);
  host_exec exec;
  auto request = start(presets::knorm{.tokens = 20}, shape);

  struct capacity : paged_view<> {  // its rows are as many as the cache has room for
    rows keys(layer_id layer) const noexcept { return paged_view<>::first(64).keys(layer); }
  };
  CHECK_THROWS_WITH(request.prefill(capacity{view}, {0}, {}, exec), ContainsSubstring("x 64 tokens x 8; the view has"));

  table[4] = table[0];  // the values' of the last tokens
  view.value_pages = table.data();
  CHECK_THROWS_WITH(request.prefill(view, {0}, {}, exec), ContainsSubstring("page table names page"));
}

// A step's own page may have been moved away, where a cut opened it again.
TEST_CASE("a page that every step weighs is there before anything is chosen", "[policy]") {
  random_source random(197);
  cache_shape const shape{1, 2, 1, 8, 64, element_type::f32};
  random_cache const cache(shape, layout::paged_nhd, 1, random);
  std::vector<float> const vectors = random.reals(2 * 8);
  paged_view<> view = cache.in_pages(40);
  std::vector<std::int32_t> table(view.pages, view.pages + 64);
  view.pages = table.data();
  host_exec exec;
  auto request = start(presets::quest{.tokens = 32, .page = 8}, shape);
  request.prefill(view, {0}, {}, exec);
  step_signals const step{.queries = {vectors.data(), 2, 8, .3f}};
  table[3] = -1;  // of a full page, which its summary stands for
  CHECK_NOTHROW(request.choose(view.first(41), {0}, step, exec));
  table[39] = -1;
  CHECK_THROWS_WITH(request.choose(view.first(42), {0}, step, exec),
                    ContainsSubstring("the retained keys of KV head 0 have no page for some of tokens 33 to 40"));
}

TEST_CASE("a state is refused by a policy that requires something else", "[policy]") {
  cache_shape const shape{1, 2, 1, 8, 300, element_type::f32};
  auto const saved = [&](auto const& policy) {
    std::vector<std::byte> bytes;
    state_writer to(bytes);
    auto made = start(policy, shape);
    made.archive(to);
    return bytes;
  };
  auto const read = [&](std::vector<std::byte> const& bytes, auto const& policy) {
    state_reader from(bytes);
    auto made = start(policy, shape);
    made.archive(from);
  };
  auto const snapkv = saved(presets::snapkv{.tokens = 96, .after = 0});
  CHECK_NOTHROW(read(snapkv, presets::snapkv{.tokens = 96, .after = 0}));
  CHECK_THROWS_AS(read(snapkv, presets::knorm{.tokens = 32}), invalid_value);
}

}  // namespace
}  // namespace kvpolicy_test
