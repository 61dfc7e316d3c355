// The row store through the C ABI: policies choose and attend on it as on tensors that keep everything, and rows are freed.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "c/stores.hpp"

using namespace kvpolicy_test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A cache, and a store for a sequence of its shape.
struct place {
  random_source random;
  random_cache cache;
  c_arena arena;
  c_store store;

  place(std::uint64_t seed, cache_shape const& shape)
      : random(seed), cache(shape, layout::head_major, 1, random), arena(arena_of(shape)), store(store_of(arena, shape)) {}
};

void says(kvpolicy_status got, kvpolicy_status wanted, char const* why) {
  CHECK(got == wanted);
  CHECK_THAT(std::string(kvpolicy_message()), ContainsSubstring(why));
}

/// One sequence, on a store or on the cache itself.
class side {
 public:
  side(std::string const& text, random_cache const& cache, kvpolicy_store* store)
      : cache_(cache), policy_(parsed(text)), state_(started(policy_, cache.shape())), store_(store) {
    REQUIRE(state_ != nullptr);
    if (store != nullptr) ok(kvpolicy_bind_store(state_.get(), store));
    for (std::int64_t l = 0; store == nullptr && l < cache.shape().layers; ++l) ok(bind(state_.get(), cache, l));
  }
  kvpolicy_state* state() { return state_.get(); }

  void prompt(std::int64_t first, std::int64_t tokens, std::vector<float> const& queries) {
    cache_shape const& s = cache_.shape();
    if (store_ != nullptr) append(store_, cache_, first, tokens - first);
    std::int64_t const count = std::min({kvpolicy_observation_queries(policy_.get()), tokens - first, std::int64_t{32}});
    c_tensor const last(queries.data(), c_float, {count, s.q_heads, s.head_dim});
    kvpolicy_prompt const told{first, count > 0 ? &last.t : nullptr, scale, KVPOLICY_HALVES, nullptr, nullptr, 0, 0};
    for (std::int64_t l = 0; l < s.layers; ++l) ok(kvpolicy_prefill(state_.get(), l, tokens, &told));
  }

  /// What is read, and what comes of it, of all layers.
  std::vector<float> step(std::int64_t tokens, std::vector<float> const& queries) {
    cache_shape const& s = cache_.shape();
    if (store_ != nullptr) append(store_, cache_, tokens - 1, 1);
    std::vector<float> all;
    c_tensor const q(queries, {s.q_heads, s.head_dim});
    for (std::int64_t l = 0; l < s.layers; ++l) {
      ok(kvpolicy_choose(state_.get(), l, tokens, q, scale, 7));
      for (std::int64_t h = 0; h < s.kv_heads; ++h) {
        kvpolicy_range const* ranges = nullptr;
        std::int64_t count = 0;
        ok(kvpolicy_list(state_.get(), l, h, &ranges, &count));
        for (std::int64_t i = 0; i < count; ++i) {
          all.push_back(static_cast<float>(ranges[i].begin));
          all.push_back(static_cast<float>(ranges[i].end));
        }
      }
      std::vector<float> out(queries.size());
      c_tensor const to(out, {s.q_heads, s.head_dim});
      ok(kvpolicy_attend(state_.get(), l, q, scale, to));
      all.insert(all.end(), out.begin(), out.end());
    }
    ok(kvpolicy_observe(state_.get(), nullptr));
    for (std::int64_t l = 0; store_ != nullptr && l < s.layers; ++l) ok(kvpolicy_store_retain(store_, l, state_.get()));
    return all;
  }

 private:
  random_cache const& cache_;
  c_policy policy_;
  c_state state_;
  kvpolicy_store* store_;
};

}  // namespace

TEST_CASE("on a store, through the C ABI, policies choose and attend as on tensors that keep everything") {
  for (std::string const text : {"full", "snapkv:tokens=40", "quest:tokens=32,page=4", "streaming_llm:tokens=40",
                                 "tova:tokens=40", "adakv:tokens=40", "snapkv:tokens=80+quest:tokens=32,page=4"}) {
    CAPTURE(text);
    random_source random(5);
    cache_shape const shape{
        .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .max_tokens = longest, .type = element_type::f16};
    random_cache const cache(shape, layout::token_major, 1, random);
    c_arena const arena = arena_of(shape);
    c_store const store = store_of(arena, shape);
    side on_store(text, cache, store.get());
    side on_cache(text, cache, nullptr);
    std::vector<float> const window = random_floats(random, 32 * shape.q_heads * shape.head_dim);
    on_store.prompt(0, 200, window);
    on_cache.prompt(0, 200, window);
    CHECK(kvpolicy_store_released(store.get()) == 200);
    std::int64_t const whole = kvpolicy_store_rows(store.get());
    CHECK(whole == 200 * 4);
    for (std::int64_t tokens = 201; tokens < 240; ++tokens) {
      std::vector<float> const q = random_floats(random, shape.q_heads * shape.head_dim);
      REQUIRE(on_store.step(tokens, q) == on_cache.step(tokens, q));
    }
    bool const drops = text != "full" && text != "quest:tokens=32,page=4";
    CHECK((kvpolicy_store_rows(store.get()) < whole) == drops);
    // A tail is removed from both.
    ok(kvpolicy_store_truncate(store.get(), 229));  // whose state follows by itself
    ok(kvpolicy_cut(on_cache.state(), 229));
    std::vector<float> const q = random_floats(random, shape.q_heads * shape.head_dim);
    REQUIRE(on_store.step(230, q) == on_cache.step(230, q));
  }
}

TEST_CASE("a step whose row was not appended, or twice, is refused, and then made as if it had not been asked for") {
  place here(7, {.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 8, .max_tokens = longest, .type = element_type::f32});
  place other(7, here.cache.shape());
  side one("tova:tokens=30", here.cache, here.store.get());
  side twin("tova:tokens=30", other.cache, other.store.get());
  std::vector<float> const q = random_floats(here.random, 2 * 8);
  one.prompt(0, 100, q);
  twin.prompt(0, 100, q);
  c_tensor const queries(q, {2, 8});
  says(kvpolicy_choose(one.state(), 0, 101, queries, scale, 7), KVPOLICY_INVALID, "append the new tokens' rows first, once");
  CHECK(one.step(101, q) == twin.step(101, q));
  append(here.store.get(), here.cache, 101, 1);
  append(here.store.get(), here.cache, 102, 1);
  says(kvpolicy_choose(one.state(), 0, 102, queries, scale, 7), KVPOLICY_INVALID, "rows of 103 tokens");
  ok(kvpolicy_store_truncate(here.store.get(), 101));
  CHECK(one.step(102, q) == twin.step(102, q));
  c_tensor const rows(q, {2, 64, 8});
  says(kvpolicy_bind(one.state(), 0, rows, rows, nullptr), KVPOLICY_INVALID, "bound to a store");
}

TEST_CASE("a prompt that goes on is decided among the rows that are left") {
  place here(6, {.layers = 2, .q_heads = 2, .kv_heads = 2, .head_dim = 8, .max_tokens = longest, .type = element_type::f32});
  side one("knorm:tokens=30", here.cache, here.store.get());
  std::vector<float> const q = random_floats(here.random, 2 * 8);
  one.prompt(0, 100, q);
  one.step(101, q);
  CHECK(kvpolicy_store_rows(here.store.get()) == 31 * 4);
  one.prompt(101, 150, q);
  one.step(151, q);
  CHECK(kvpolicy_store_rows(here.store.get()) == 31 * 4);
}

/// A token's attention in double precision over those tokens of a head.
std::vector<double> attention(random_cache const& cache, std::int64_t head, std::vector<std::int64_t> const& tokens,
                              float const* query) {
  auto const dim = static_cast<std::size_t>(cache.shape().head_dim);
  std::vector<double> out(dim);
  std::vector<float> row(dim);
  double sum = 0;
  for (std::int64_t const t : tokens) {
    cache.keys(0, longest).load({head}, {t}, row);
    double const weight = std::exp(scale * std::inner_product(row.begin(), row.end(), query, 0.0));
    sum += weight;
    cache.values(0, longest).load({head}, {t}, row);
    for (std::size_t d = 0; d < dim; ++d) out[d] += weight * row[d];
  }
  for (double& x : out) x /= sum;
  return out;
}

TEST_CASE("a prompt that goes on attends to the rows that are left and its own, up to each token") {
  cache_shape const shape{
      .layers = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 8, .max_tokens = longest, .type = element_type::f32};
  place here(9, shape);
  std::vector<float> const window = random_floats(here.random, 32 * 4 * 8);
  for (bool const on_store : {false, true}) {
    CAPTURE(on_store);
    side one("snapkv:tokens=30,after=0", here.cache, on_store ? here.store.get() : nullptr);
    one.prompt(0, 100, window);
    one.step(101, random_floats(here.random, 4 * 8));
    if (on_store) append(here.store.get(), here.cache, 101, 20);
    std::vector<float> const queries = random_floats(here.random, 20 * 4 * 8);
    std::vector<float> out(queries.size());
    c_tensor const q(queries, {20, 4, 8});
    c_tensor const to(out, {20, 4, 8});
    ok(kvpolicy_attend_prompt(one.state(), 0, 121, q, scale, to));
    for (std::int64_t i = 0; i < 20; ++i) {
      for (std::int64_t h = 0; h < 4; ++h) {
        kvpolicy_range const* ranges = nullptr;
        std::int64_t count = 0;
        ok(kvpolicy_retained(one.state(), 0, h / 2, &ranges, &count));
        std::vector<std::int64_t> seen;
        for (std::int64_t t = 0; t < 101; ++t) {
          bool const left = std::any_of(ranges, ranges + count, [&](auto const& r) { return t >= r.begin && t < r.end; });
          if (!on_store || left) seen.push_back(t);
        }
        CHECK((std::ssize(seen) < 101) == on_store);
        for (std::int64_t t = 101; t <= 101 + i; ++t) seen.push_back(t);
        auto const expected = attention(here.cache, h / 2, seen, queries.data() + (i * 4 + h) * 8);
        for (std::int64_t d = 0; d < 8; ++d) {
          double const got = out[static_cast<std::size_t>((i * 4 + h) * 8 + d)];
          REQUIRE(std::abs(got - expected[static_cast<std::size_t>(d)]) < .02);
        }
      }
    }
    c_tensor const few(out, {19, 4, 8});
    CHECK(kvpolicy_attend_prompt(one.state(), 0, 121, q, scale, few) == KVPOLICY_INVALID);
    CHECK(kvpolicy_attend_prompt(one.state(), 0, 19, q, scale, to) == KVPOLICY_INVALID);
    CHECK_THAT(std::string(kvpolicy_message()), ContainsSubstring("queries of 20 tokens, the last of 19"));
    CHECK(kvpolicy_attend_prompt(one.state(), 0, 401, q, scale, to) == KVPOLICY_INVALID);
    CHECK(kvpolicy_attend_prompt(one.state(), 1, 121, q, scale, to) == KVPOLICY_INVALID);
  }
}

TEST_CASE("copies share rows until one of them writes, and outlive their arena's handle") {
  place here(7, {.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 8, .max_tokens = longest, .type = element_type::f32});
  append(here.store.get(), here.cache, 0, 128);
  std::int64_t const before = kvpolicy_arena_bytes(here.arena.get());
  kvpolicy_store* made = nullptr;
  ok(kvpolicy_store_fork(here.store.get(), 128, &made));
  c_store const copy(made);
  CHECK(kvpolicy_arena_bytes(here.arena.get()) == before);
  here.store.reset();
  here.arena.reset();
  append(copy.get(), here.cache, 128, 10);
  CHECK(kvpolicy_store_rows(copy.get()) == 138);
}

TEST_CASE("bad calls of the store are refused by name, and change nothing") {
  random_source random(8);
  cache_shape const shape{
      .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 8, .max_tokens = 300, .type = element_type::f32};
  random_cache const cache(shape, layout::head_major, 1, random);
  kvpolicy_shape const sizes = c_shape(shape);
  kvpolicy_arena* no_arena = nullptr;
  kvpolicy_store* none = nullptr;
  says(kvpolicy_arena_start(&sizes, 100, &no_arena), KVPOLICY_INVALID, "a block of 64 rows takes 4096");
  says(kvpolicy_arena_start(nullptr, 100, &no_arena), KVPOLICY_INVALID, "shape is NULL");
  says(kvpolicy_arena_start(&sizes, 1 << 20, nullptr), KVPOLICY_INVALID, "arena is NULL");
  says(kvpolicy_store_start(nullptr, &sizes, &none), KVPOLICY_INVALID, "arena is NULL");
  c_arena const arena = arena_of(shape, 3 * 4096);
  c_store const store = store_of(arena, shape);
  auto const keys = rows_from(cache.keys(0, 300), 0, 100);
  says(kvpolicy_store_append(store.get(), 1, *keys, *keys), KVPOLICY_INVALID, "layer 1; there are 0 to 0");
  says(kvpolicy_store_append(store.get(), 0, *keys, nullptr), KVPOLICY_INVALID, "values of layer 0: no tensor was given");
  ok(kvpolicy_store_append(store.get(), 0, *keys, *keys));
  says(kvpolicy_store_append(store.get(), 0, *keys, *keys), KVPOLICY_FAILED, "exhausted");
  CHECK(kvpolicy_store_released(store.get()) == 100);
  says(kvpolicy_store_truncate(store.get(), -1), KVPOLICY_INVALID, "-1 tokens");
  says(kvpolicy_store_fork(store.get(), 5, nullptr), KVPOLICY_INVALID, "copy is NULL");
  cache_shape other = shape;
  other.head_dim = 16;
  c_policy const policy = parsed("knorm:tokens=30");
  c_state const of_other = started(policy, other);
  says(kvpolicy_bind_store(of_other.get(), store.get()), KVPOLICY_INVALID, "the store is of");
  c_state const state = started(policy, shape);
  says(kvpolicy_store_retain(store.get(), 0, state.get()), KVPOLICY_INVALID, "not bound to this store");
  ok(kvpolicy_bind_store(state.get(), store.get()));
  says(kvpolicy_store_retain(store.get(), 0, state.get()), KVPOLICY_INVALID, "has decided nothing yet");
  {
    c_state const second = started(policy, shape);
    says(kvpolicy_bind_store(second.get(), store.get()), KVPOLICY_INVALID, "the store is bound to another state");
    c_store const another = store_of(arena, shape);
    ok(kvpolicy_bind_store(second.get(), another.get()));
    says(kvpolicy_bind_store(state.get(), another.get()), KVPOLICY_INVALID, "the store is bound to another state");
  }
  ok(kvpolicy_bind_store(state.get(), store.get()));
  kvpolicy_prompt const prompt{0, nullptr, scale, KVPOLICY_HALVES, nullptr, nullptr, 0, 0};
  says(kvpolicy_prefill(state.get(), 0, 101, &prompt), KVPOLICY_INVALID,
       "the store has rows of 100 tokens in layer 0, the call is on 101");
  CHECK(kvpolicy_store_released(nullptr) == 0);
  CHECK(kvpolicy_store_rows(nullptr) == 0);
  CHECK(kvpolicy_arena_bytes(nullptr) == 0);
  kvpolicy_store_free(nullptr);
  kvpolicy_arena_free(nullptr);
}
