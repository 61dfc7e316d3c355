// Steps of several sequences at once, and of one sequence on several ranks, against the calls that they stand for.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "c/stores.hpp"
#include "ranks/local_group.hpp"

using namespace kvpolicy_test;
using Catch::Matchers::ContainsSubstring;

namespace {

cache_shape shape_of(element_type type) {
  return {.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .max_tokens = longest, .type = type};
}

/// One sequence on a store, whose prompt has been read.
struct one_sequence {
  random_cache cache;
  c_store store;
  c_state state;
  std::int64_t tokens;

  one_sequence(c_policy const& policy, c_arena const& arena, cache_shape const& shape, std::int64_t prompt, std::uint64_t seed)
      : cache(made(shape, seed)), store(store_of(arena, shape)), state(started(policy, shape)), tokens(prompt) {
    ok(kvpolicy_bind_store(state.get(), store.get()));
    append(store.get(), cache, 0, prompt);
    random_source random(seed + 1);
    std::int64_t const count = std::min(kvpolicy_observation_queries(policy.get()), prompt);
    std::vector<float> const window = random_floats(random, count * shape.q_heads * shape.head_dim);
    c_tensor const last(window.data(), c_float, {count, shape.q_heads, shape.head_dim});
    std::vector<std::int32_t> const ids(static_cast<std::size_t>(prompt), 3);
    c_tensor const told_ids(ids.data(), c_int, {prompt});
    kvpolicy_prompt const told{0, count > 0 ? &last.t : nullptr, scale, KVPOLICY_HALVES, nullptr, &told_ids.t, 0, 0};
    for (std::int64_t l = 0; l < shape.layers; ++l) ok(kvpolicy_prefill(state.get(), l, prompt, &told));
  }

  static random_cache made(cache_shape const& shape, std::uint64_t seed) {
    random_source random(seed);
    return random_cache(shape, layout::head_major, 1, random);
  }

  /// The next token's attention in a layer, call by call; returns rows that were read.
  std::int64_t step(std::int64_t layer, float const* queries, float* out) {
    cache_shape const& s = cache.shape();
    ok(kvpolicy_store_append(store.get(), layer, *rows_from(cache.keys(layer, longest), tokens, 1),
                             *rows_from(cache.values(layer, longest), tokens, 1)));
    c_tensor const q(queries, c_float, {s.q_heads, s.head_dim});
    c_tensor const to(out, c_float, {s.q_heads, s.head_dim});
    ok(kvpolicy_choose(state.get(), layer, tokens + 1, q, scale, 7));
    ok(kvpolicy_attend(state.get(), layer, q, scale, to));
    std::int64_t read = 0;
    for (std::int64_t h = 0; h < s.kv_heads; ++h) {
      kvpolicy_range const* ranges = nullptr;
      std::int64_t count = 0;
      ok(kvpolicy_list(state.get(), layer, h, &ranges, &count));
      for (std::int64_t i = 0; i < count; ++i) read += ranges[i].end - ranges[i].begin;
    }
    if (layer + 1 < s.layers) return read;
    observe();
    for (std::int64_t l = 0; l < s.layers; ++l) ok(kvpolicy_store_retain(store.get(), l, state.get()));
    ++tokens;
    return read;
  }

  void observe() const {
    random_source random(static_cast<std::uint64_t>(tokens));
    std::vector<float> const logits = random_floats(random, 50);
    ok(kvpolicy_observe(state.get(), c_tensor(logits, {50})));
  }
};

/// A layer's next token of several sequences, side by side.
struct side_by_side {
  std::vector<std::byte> keys, values;

  side_by_side(std::vector<one_sequence*> const& of, std::int64_t layer) {
    for (one_sequence const* const s : of) {
      copy(s->cache.keys(layer, longest), s->tokens, keys);
      copy(s->cache.values(layer, longest), s->tokens, values);
    }
  }
  static void copy(rows const& from, std::int64_t token, std::vector<std::byte>& to) {
    for (std::int64_t h = 0; h < from.heads; ++h) {
      std::byte const* const row = from.base + h * from.head_stride + token * from.token_stride;
      to.insert(to.end(), row, row + from.head_dim * size_of(from.type));
    }
  }
};

/// kvpolicy_step of a layer.
kvpolicy_status step(std::vector<one_sequence*> const& of, std::int64_t layer, std::vector<float> const& queries,
                     std::vector<float>& out, std::vector<std::int64_t>& read, kvpolicy_threads const* threads = nullptr,
                     bool leave_whole = false) {
  cache_shape const& s = of.front()->cache.shape();
  auto const count = std::ssize(of);
  side_by_side const given(of, layer);
  c_tensor const keys(given.keys.data(), c_dtype(s.type), {count, s.kv_heads, s.head_dim});
  c_tensor const values(given.values.data(), c_dtype(s.type), {count, s.kv_heads, s.head_dim});
  c_tensor const q(queries, {count, s.q_heads, s.head_dim});
  c_tensor const to(out, {count, s.q_heads, s.head_dim});
  std::vector<std::int32_t> const ids(of.size(), 7);
  c_tensor const told(ids.data(), c_int, {count});
  std::vector<kvpolicy_state*> states;
  for (one_sequence const* const s_ : of) states.push_back(s_->state.get());
  return kvpolicy_step(states.data(), count, layer, keys, values, q, scale, told, to, read.data(), leave_whole ? 1 : 0,
                       threads);
}

/// work() on three threads at once.
void on_threads(void*, void (*work)(void*), void* argument) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(work, argument);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("a step of several sequences is what its calls are for each, on threads too") {
  kvpolicy_threads const some{on_threads, nullptr};
  kvpolicy_threads const* const threads = GENERATE_REF(static_cast<kvpolicy_threads const*>(nullptr), &some);
  for (element_type const type : {element_type::f32, element_type::bf16}) {
    for (std::string const text :
         {"full", "snapkv:tokens=40", "quest:tokens=32,page=4", "tova:tokens=40", "h2o:tokens=40",
          "chess:tokens=64,page=8,sink_pages=1,recent_pages=2,pre_rope=0", "snapkv:tokens=80+quest:tokens=32,page=4"}) {
      CAPTURE(text);
      cache_shape const shape = shape_of(type);
      c_policy const policy = parsed(text);
      REQUIRE(policy != nullptr);
      std::vector<c_arena> arenas;
      std::vector<one_sequence> together, alone;
      std::vector<one_sequence*> all;
      for (std::uint64_t const seed : {11, 22, 33}) {
        auto const prompt = static_cast<std::int64_t>(100 + 3 * seed);
        for (std::vector<one_sequence>* const side : {&together, &alone})
          side->emplace_back(policy, arenas.emplace_back(arena_of(shape)), shape, prompt, seed);
      }
      for (one_sequence& s : together) all.push_back(&s);
      random_source random(77);
      std::int64_t const row = shape.q_heads * shape.head_dim;
      for (int n = 0; n < 12; ++n) {
        for (std::int64_t l = 0; l < shape.layers; ++l) {
          std::vector<float> const q = random_floats(random, 3 * row);
          std::vector<float> out(q.size()), expected(q.size());
          std::vector<std::int64_t> read(3), wanted;
          ok(step(all, l, q, out, read, threads));
          for (std::int64_t i = 0; i < 3; ++i)
            wanted.push_back(alone[static_cast<std::size_t>(i)].step(l, q.data() + i * row, expected.data() + i * row));
          REQUIRE(out == expected);
          REQUIRE(read == wanted);
        }
        for (std::size_t i = 0; i < 3; ++i) {
          if ((kvpolicy_policy_needs(policy.get()) & KVPOLICY_NEEDS_LOGITS) != 0) together[i].observe();
          ++together[i].tokens;
          REQUIRE(kvpolicy_store_rows(together[i].store.get()) == kvpolicy_store_rows(alone[i].store.get()));
        }
      }
    }
  }
}

TEST_CASE("a sequence that is refused in a step loses the token alone, and begins it again") {
  cache_shape const shape = shape_of(element_type::f16);
  c_policy const policy = parsed("quest:tokens=32,page=4");
  c_arena const roomy = arena_of(shape);
  // Blocks for 128 tokens of each layer and head, and one more.
  std::int64_t const block = 64 * 2 * shape.head_dim * 2;
  c_arena const narrow = arena_of(shape, (2 * 4 + 1) * block);
  one_sequence first(policy, roomy, shape, 100, 1), tight(policy, narrow, shape, 128, 2);
  one_sequence control(policy, roomy, shape, 128, 2);
  std::int64_t const row = shape.q_heads * shape.head_dim;
  random_source random(5);
  std::vector<float> const q = random_floats(random, 3 * row);
  std::vector<float> out(q.size());
  std::vector<std::int64_t> read(3);
  kvpolicy_threads const threads{on_threads, nullptr};
  c_arena const third = arena_of(shape);
  one_sequence last(policy, third, shape, 90, 3);
  REQUIRE(step({&first, &tight, &last}, 0, q, out, read, &threads) == KVPOLICY_FAILED);
  CHECK_THAT(std::string(kvpolicy_message()), ContainsSubstring("memory is exhausted"));
  CHECK((read[0] > 0 && read[1] == -1 && read[2] > 0));
  CHECK(kvpolicy_store_rows(first.store.get()) == 100 * 4 + 2);  // the token, in one layer
  CHECK(kvpolicy_store_rows(tight.store.get()) == 128 * 4);
  CHECK(kvpolicy_store_rows(last.store.get()) == 90 * 4 + 2);
  // With 28 tokens less there is room.
  ok(kvpolicy_store_truncate(tight.store.get(), 100));
  ok(kvpolicy_store_truncate(control.store.get(), 100));
  tight.tokens = control.tokens = 100;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    std::vector<float> const one(q.begin(), q.begin() + row);
    std::vector<float> got(one.size()), expected(one.size());
    ok(step({&tight}, l, one, got, read));
    control.step(l, one.data(), expected.data());
    REQUIRE(got == expected);
  }
}

TEST_CASE("a layer that has made its step does not make it again before the others have") {
  cache_shape const shape = shape_of(element_type::f16);
  c_arena const arena = arena_of(shape);
  for (char const* const text : {"full", "snapkv:tokens=60,window=8,after=0"}) {
    CAPTURE(text);
    one_sequence s(parsed(text), arena, shape, 100, 7);
    std::vector<float> const q(static_cast<std::size_t>(shape.q_heads * shape.head_dim), .5f);
    std::vector<float> out(q.size());
    std::vector<std::int64_t> read(1);
    ok(step({&s}, 0, q, out, read));
    CHECK(step({&s}, 0, q, out, read) == KVPOLICY_INVALID);
    CHECK_THAT(std::string(kvpolicy_message()), ContainsSubstring("was not made in every layer"));
    ok(step({&s}, 1, q, out, read));
    ++s.tokens;
    ok(step({&s}, 0, q, out, read));
  }
}

TEST_CASE("a layer may step before the next one has its prompt, and a refused step leaves other layers' rows") {
  cache_shape const shape = shape_of(element_type::f16);
  c_arena const arena = arena_of(shape);
  random_cache const cache = one_sequence::made(shape, 9);
  c_store const store = store_of(arena, shape);
  c_state const state = started(parsed("full"), shape);
  ok(kvpolicy_bind_store(state.get(), store.get()));
  std::vector<float> const queries(static_cast<std::size_t>(shape.q_heads * shape.head_dim), .5f);
  std::vector<float> attended(queries.size());
  c_tensor const q(queries, {1, shape.q_heads, shape.head_dim});
  c_tensor const out(attended, {1, shape.q_heads, shape.head_dim});
  auto const prompt = [&](std::int64_t layer) {
    kvpolicy_prompt const told{};
    ok(kvpolicy_store_append(store.get(), layer, *rows_from(cache.keys(layer, longest), 0, 100),
                             *rows_from(cache.values(layer, longest), 0, 100)));
    ok(kvpolicy_prefill(state.get(), layer, 100, &told));
  };
  auto const next = [&](std::int64_t layer) {
    std::vector<std::byte> key, value;
    side_by_side::copy(cache.keys(layer, longest), 100, key);
    side_by_side::copy(cache.values(layer, longest), 100, value);
    c_tensor const k(key.data(), c_dtype(shape.type), {1, shape.kv_heads, shape.head_dim});
    c_tensor const v(value.data(), c_dtype(shape.type), {1, shape.kv_heads, shape.head_dim});
    kvpolicy_state* states[] = {state.get()};
    std::int64_t read = 0;
    return kvpolicy_step(states, 1, layer, k, v, q, scale, nullptr, out, &read, 0, nullptr);
  };
  prompt(0);
  CHECK(next(1) == KVPOLICY_INVALID);
  CHECK(kvpolicy_store_rows(store.get()) == 100 * shape.kv_heads);
  ok(next(0));
  prompt(1);
  ok(next(1));
  CHECK(kvpolicy_store_rows(store.get()) == 2 * 101 * shape.kv_heads);
}

TEST_CASE("a step leaves the attention of what is read whole to the engine, where it is told to") {
  cache_shape const shape = shape_of(element_type::f32);
  c_policy const policy = parsed("snapkv:tokens=60,after=0");
  c_arena const arena = arena_of(shape);
  one_sequence few(policy, arena, shape, 59, 1), many(policy, arena, shape, 61, 2);
  std::int64_t const row = shape.q_heads * shape.head_dim;
  random_source random(5);
  std::vector<float> const q = random_floats(random, 2 * row);
  std::vector<std::int64_t> read(2);
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    std::vector<float> out(q.size(), 9.f);
    ok(step({&few, &many}, l, q, out, read, nullptr, true));
    CHECK(read == std::vector<std::int64_t>{60 * 2, 61 * 2});
    CHECK(std::ranges::all_of(out.begin(), out.begin() + row, [](float x) { return x == 9.f; }));
    CHECK(std::ranges::none_of(out.begin() + row, out.end(), [](float x) { return x == 9.f; }));
  }
}

TEST_CASE("a step refuses what it can't make, before any sequence has made it") {
  cache_shape const shape = shape_of(element_type::f32);
  c_policy const policy = parsed("snapkv:tokens=40,after=0");
  c_arena const arena = arena_of(shape);
  one_sequence one(policy, arena, shape, 100, 1), two(policy, arena, shape, 100, 2);
  std::int64_t const row = shape.q_heads * shape.head_dim;
  std::vector<float> const q(static_cast<std::size_t>(2 * row)), rows_(static_cast<std::size_t>(2 * 2 * shape.head_dim));
  std::vector<float> out(q.size());
  std::vector<std::int64_t> read(2);
  c_tensor const keys(rows_, {2, 2, 16}), queries(q, {2, 4, 16}), to(out, {2, 4, 16}), few(q, {1, 4, 16}), wide(q, {2, 2, 32}),
      one_key(rows_, {1, 2, 16});
  c_state const storeless = started(policy, shape);
  c_tensor const one_query(q, {1, 4, 16}), one_out(out, {1, 4, 16});
  kvpolicy_threads const* threads = nullptr;
  kvpolicy_state* states[2] = {one.state.get(), two.state.get()};
  auto const refused = [&](std::string const& why, kvpolicy_state* second, std::int64_t count, std::int64_t layer,
                           kvpolicy_tensor const* k, kvpolicy_tensor const* asked, float by, kvpolicy_tensor const* into) {
    states[1] = second;
    CHECK(kvpolicy_step(states, count, layer, k, k, asked, by, nullptr, into, read.data(), 0, threads) == KVPOLICY_INVALID);
    CHECK_THAT(std::string(kvpolicy_message()), ContainsSubstring(why));
    CHECK(read == std::vector<std::int64_t>(2, -1));
    CHECK(kvpolicy_store_rows(one.store.get()) == 100 * 4);
  };
  refused("a state is NULL", nullptr, 2, 0, keys, queries, scale, to);
  refused("state 1 has no store", storeless.get(), 2, 0, keys, queries, scale, to);
  refused("0 sequences", two.state.get(), 0, 0, keys, queries, scale, to);
  refused("layer 2", two.state.get(), 2, 2, keys, queries, scale, to);
  refused("keys", two.state.get(), 2, 0, nullptr, queries, scale, to);
  refused("axis 0 (sequences) has 1", two.state.get(), 2, 0, keys, few, scale, to);
  refused("axis 1 (heads) has 2", two.state.get(), 2, 0, keys, wide, scale, to);
  refused("scale", two.state.get(), 2, 0, keys, queries, std::numeric_limits<float>::infinity(), to);
  refused("out", two.state.get(), 2, 0, keys, queries, scale, nullptr);
  refused("layer 1", two.state.get(), 2, 1, keys, queries, scale, to);  // before layer 0
  CHECK(kvpolicy_step(states, 2, 0, keys, keys, queries, scale, nullptr, to, nullptr, 0, nullptr) == KVPOLICY_INVALID);
  kvpolicy_threads told{on_threads, nullptr};
  threads = &told;
  refused("another one's arena", two.state.get(), 2, 0, keys, queries, scale, to);
  told.run = [](void*, void (*)(void*), void*) {};
  refused("did no work", one.state.get(), 1, 0, one_key, one_query, scale, one_out);
  told.run = nullptr;
  refused("run is NULL", two.state.get(), 2, 0, keys, queries, scale, to);
}

namespace {

/// A rank's sum for the C ABI.
std::int32_t sum(void* user, float* values, std::int64_t count) {
  try {
    static_cast<ranks::local_communicator*>(user)->sum({values, static_cast<std::size_t>(count)});
    return 0;
  } catch (std::exception const&) {
    return 9;
  }
}

/// Catch2's macros are for one thread.
void must(kvpolicy_status status) {
  if (status != KVPOLICY_OK) throw std::runtime_error(kvpolicy_message());
}

/// What a state reads in steps of tokens behind a prompt, of the heads from `first` on.
std::vector<std::int64_t> reads(kvpolicy_state* state, random_cache const& cache, std::int64_t first, std::int64_t heads) {
  cache_shape const& s = cache.shape();
  std::int64_t const group = s.q_heads / s.kv_heads;
  for (std::int64_t l = 0; l < s.layers; ++l) {
    auto const part = [&](rows all) {
      all.base += first * all.head_stride;
      all.heads = heads;
      return c_rows(all, 0);
    };
    must(kvpolicy_bind(state, l, *part(cache.keys(l, longest)), *part(cache.values(l, longest)), nullptr));
  }
  kvpolicy_prompt const told{0, nullptr, scale, KVPOLICY_HALVES, nullptr, nullptr, 0, 0};
  for (std::int64_t l = 0; l < s.layers; ++l) must(kvpolicy_prefill(state, l, 200, &told));
  random_source random(3);
  std::vector<std::int64_t> all;
  for (std::int64_t tokens = 201; tokens < 220; ++tokens) {
    for (std::int64_t l = 0; l < s.layers; ++l) {
      std::vector<float> const q = random_floats(random, s.q_heads * s.head_dim);
      c_tensor const mine(q.data() + first * group * s.head_dim, c_float, {heads * group, s.head_dim});
      must(kvpolicy_choose(state, l, tokens, mine, scale, -1));
      kvpolicy_range const* ranges = nullptr;
      std::int64_t count = 0;
      must(kvpolicy_list(state, l, heads - 1, &ranges, &count));
      for (std::int64_t i = 0; i < count; ++i) all.insert(all.end(), {ranges[i].begin, ranges[i].end});
    }
    std::vector<float> const logits = random_floats(random, 50);
    must(kvpolicy_observe(state, c_tensor(logits, {50})));
  }
  return all;
}

}  // namespace

TEST_CASE("ranks that have a head each choose for the request what one process with both does") {
  cache_shape const shape = shape_of(element_type::f32);
  random_source random(9);
  random_cache const cache(shape, layout::head_major, 1, random);
  c_policy const policy = parsed("chess:tokens=64,page=8,sink_pages=1,recent_pages=2,pre_rope=0");
  c_state const whole = started(policy, shape);
  std::vector<std::int64_t> const expected = reads(whole.get(), cache, 0, 2);
  std::vector<std::vector<std::int64_t>> got(2), alone(2);
  cache_shape part = shape;
  part.q_heads = 2;
  part.kv_heads = 1;
  kvpolicy_shape const sizes = c_shape(part);
  auto const thrown = ranks::on_ranks(2, std::chrono::minutes(5), [&](ranks::local_communicator& all) {
    kvpolicy_ranks const told{all.rank(), all.size(), sum, &all};
    kvpolicy_state* made = nullptr;
    if (kvpolicy_start_ranked(policy.get(), &sizes, &told, &made) != KVPOLICY_OK) throw std::runtime_error(kvpolicy_message());
    c_state const state(made);
    got[static_cast<std::size_t>(all.rank())] = reads(state.get(), cache, all.rank(), 1);
  });
  for (std::string const& what : thrown) REQUIRE(what.empty());
  CHECK(got[0] == expected);
  CHECK(got[1] == expected);
  // What the sums are for: by itself each rank would choose otherwise.
  for (std::int64_t rank = 0; rank < 2; ++rank)
    alone[static_cast<std::size_t>(rank)] = reads(started(policy, part).get(), cache, rank, 1);
  CHECK(alone[0] != alone[1]);
}

TEST_CASE("ranks that can't be, and a sum that fails, are refused by name") {
  cache_shape const shape = shape_of(element_type::f32);
  kvpolicy_shape const sizes = c_shape(shape);
  c_policy const policy = parsed("chess:tokens=64,page=8,sink_pages=1,recent_pages=2,pre_rope=0");
  kvpolicy_state* made = nullptr;
  for (kvpolicy_ranks const& told : {kvpolicy_ranks{2, 2, sum, nullptr}, {-1, 2, sum, nullptr}, {0, 1, nullptr, nullptr}}) {
    CHECK(kvpolicy_start_ranked(policy.get(), &sizes, &told, &made) == KVPOLICY_INVALID);
    CHECK_THAT(std::string(kvpolicy_message()), ContainsSubstring("rank "));
  }
  CHECK(kvpolicy_start_ranked(policy.get(), &sizes, nullptr, &made) == KVPOLICY_INVALID);
  kvpolicy_ranks const broken{0, 2, [](void*, float*, std::int64_t) -> std::int32_t { return 4; }, nullptr};
  ok(kvpolicy_start_ranked(policy.get(), &sizes, &broken, &made));
  c_state const state(made);
  random_source random(9);
  random_cache const cache(shape, layout::head_major, 1, random);
  for (std::int64_t l = 0; l < shape.layers; ++l) ok(bind(state.get(), cache, l));
  kvpolicy_prompt const told{0, nullptr, scale, KVPOLICY_HALVES, nullptr, nullptr, 0, 0};
  for (std::int64_t l = 0; l < shape.layers; ++l) ok(kvpolicy_prefill(state.get(), l, 200, &told));
  std::vector<float> const q(static_cast<std::size_t>(shape.q_heads * shape.head_dim), 1.f);
  c_tensor const asked(q, {shape.q_heads, shape.head_dim});
  CHECK(kvpolicy_choose(state.get(), 0, 201, asked, scale, -1) == KVPOLICY_FAILED);
  CHECK_THAT(std::string(kvpolicy_message()), ContainsSubstring("rank 0 of 2") && ContainsSubstring("failed with 4"));
}
