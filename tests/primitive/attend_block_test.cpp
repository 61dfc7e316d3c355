#include "kvpolicy/primitive/attend_block.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <string>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "conformance/rounds.hpp"
#include "kvpolicy/exec/host_attend.hpp"
#include "kvpolicy/primitive/attention_terms.hpp"
#include "primitive/inputs.hpp"

namespace kvpolicy_test {
namespace {

/// A block of queries over a cache, and what it may see.
struct block_case {
  cache_shape shape;
  std::int64_t tokens = 0;   ///< rows
  std::int64_t queries = 0;  ///< of the last of them
  float scale = 1;
  std::vector<float> vectors{};  ///< `[queries, q_heads, head_dim]`
  scope granularity = scope::layer;
  std::vector<range_list> lists{};
  attention_terms terms{};
  std::vector<float> sinks{};
  std::vector<float> slopes{};

  query_window window() const {
    return {vectors.data(), queries, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, scale};
  }
  selection kept() const { return {granularity, lists, shape.kv_heads}; }
  range_list const& list(std::int64_t head) const {
    return lists[granularity == scope::head ? static_cast<std::size_t>(head) : 0];
  }
};

range_list some_list(std::int64_t tokens, random_source& random) {
  range_list list;
  if (random.one_in(12)) return list;
  for (std::int64_t at = random.one_in(2) ? 0 : random.between(0, tokens - 1); at < tokens;) {
    std::int64_t const end = std::min(tokens, at + random.between(1, random.one_in(3) ? tokens : 40));
    append(list, at, end, random.pick(std::array{reason::sink, reason::scored, reason::recent}));
    at = end + random.between(0, 30);
  }
  return list;
}

/// Lengths around the tiles of every executor: 32, 64, 128, 512, 1024.
std::int64_t some_length(random_source& random, std::int64_t most) {
  std::int64_t const edge = random.pick(std::array<std::int64_t, 7>{1, 32, 64, 128, 256, 512, 1024});
  return std::clamp<std::int64_t>(random.one_in(3) ? random.between(1, most) : edge + random.between(-1, 1), 1, most);
}

block_case some_block(cache_shape shape, random_source& random) {
  block_case made{.shape = shape, .tokens = shape.max_tokens, .queries = some_length(random, shape.max_tokens)};
  made.scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
  made.vectors = random.reals(made.queries * shape.q_heads * shape.head_dim, 2);
  made.granularity = random.pick(std::array{scope::layer, scope::head});
  for (std::int64_t i = 0; i < (made.granularity == scope::head ? shape.kv_heads : 1); ++i) {
    made.lists.push_back({});
    if (random.one_in(2)) append(made.lists.back(), 0, made.tokens, reason::open);
    else made.lists.back() = some_list(made.tokens, random);
  }
  made.sinks = random.reals(shape.q_heads, 2);
  made.slopes = random.reals(shape.q_heads, .05f);
  return made;
}

void draw_terms(block_case& given, random_source& random) {
  if (random.one_in(3)) given.terms.soft_cap = 1.5f;
  if (random.one_in(3)) given.terms.sinks = given.sinks.data();
  if (random.one_in(3)) given.terms.slopes = given.slopes.data();
  if (random.one_in(3)) given.terms.window = random.between(1, given.tokens + 3);
}

template <class On>
std::vector<float> block_on(On& on, random_cache const& cache, block_case const& given) {
  std::int64_t const rows = given.queries * given.shape.q_heads;
  std::vector<float> out(static_cast<std::size_t>(rows * given.shape.head_dim), -7.0f);
  on.run([&](auto& exec) {
    attend_block(given.window(), cache.keys(0, given.tokens), cache.values(0, given.tokens), given.kept(), given.terms,
                 table<float>{out.data(), rows, given.shape.head_dim, given.shape.head_dim}, exec);
  });
  return out;
}

/// From the definition alone: the output of query i's head q.
std::vector<double> wanted(random_cache const& cache, block_case const& given, std::int64_t i, std::int64_t q) {
  std::int64_t const h = q / given.shape.group();
  std::int64_t const own = given.tokens - given.queries + i;
  float const* const query = given.vectors.data() + (i * given.shape.q_heads + q) * given.shape.head_dim;
  std::vector<std::int64_t> seen;
  for (token_range const& range : given.list(h)) {
    for (std::int64_t t = range.begin; t < range.end && t <= own; ++t) {
      if (given.terms.window == 0 || own - t < given.terms.window) seen.push_back(t);
    }
  }
  std::vector<double> logits;
  for (std::int64_t const t : seen) {
    double logit = static_cast<double>(given.scale) * naive::dot(query, cache, 0, h, t);
    if (given.terms.soft_cap != 0) {
      auto const cap = static_cast<double>(given.terms.soft_cap);
      logit = cap * std::tanh(logit / cap);
    }
    if (given.terms.slopes != nullptr) logit -= static_cast<double>(given.terms.slopes[q]) * static_cast<double>(own - t);
    logits.push_back(logit);
  }
  if (given.terms.sinks != nullptr) logits.push_back(given.terms.sinks[q]);
  std::vector<double> out(static_cast<std::size_t>(given.shape.head_dim), 0.0);
  if (logits.empty()) return out;
  std::vector<double> const weights = naive::softmax(logits);
  for (std::size_t s = 0; s < seen.size(); ++s) {
    for (std::size_t d = 0; d < out.size(); ++d)
      out[d] += weights[s] * cache.value(0, h, seen[s], static_cast<std::int64_t>(d));
  }
  return out;
}

/// The GPU emulator takes its time.
template <class On>
constexpr int rounds_on(int whole) {
  if (std::is_same_v<On, on_gpu_emulator>) return rounds_of(whole) / 5 + 1;
  return rounds_of(whole);
}

/// Values are in [-1, 1] and logits below 10: products of 16 bits err by at most 10 2^-15 in a logit, weights of bf16 by 2^-9.
template <class On>
double tolerance() {
#if defined(KVPOLICY_TEST_SIMD)
  bool const simd = std::is_same_v<On, on_simd> || std::is_same_v<On, on_team>;
  if (simd && std::string(simd_exec::block_instruction_set()) == "AMX_BF16") return 4e-3;
#endif
  return 1e-4;
}

template <class On>
void compare_blocks(std::uint64_t seed, std::int64_t longest, int rounds, bool with_terms) {
  random_source random(seed);
  for (int round = 0; round < rounds; ++round) {
    cache_shape shape = random_shape(random, longest);
    shape.max_tokens = some_length(random, longest);
    random_cache const cache = random_cache_of(shape, random);
    block_case given = some_block(shape, random);
    if (with_terms) draw_terms(given, random);
    On on(shape);
    std::vector<float> const got = block_on(on, cache, given);
    for (int look = 0; look < 60; ++look) {
      std::int64_t const i = look == 0 ? 0 : look == 1 ? given.queries - 1 : random.between(0, given.queries - 1);
      std::int64_t const q = random.between(0, shape.q_heads - 1);
      std::vector<double> const want = wanted(cache, given, i, q);
      double worst = 0;
      for (std::size_t d = 0; d < want.size(); ++d) {
        auto const at = static_cast<std::size_t>((i * shape.q_heads + q) * shape.head_dim) + d;
        double const off = std::abs(static_cast<double>(got[at]) - want[d]);
        if (!(off <= worst)) worst = off;
      }
      INFO("round " << round << ": " << given.queries << " of " << given.tokens << " tokens, head size " << shape.head_dim
                    << ", query " << i << " head " << q);
      REQUIRE(worst < tolerance<On>());
    }
  }
}

TEMPLATE_TEST_CASE("attend_block is each query's softmax over what it may see, times their values", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  compare_blocks<TestType>(41, 200, rounds_on<TestType>(60), false);
}

TEMPLATE_TEST_CASE("attend_block caps, slopes, windows and sinks as each model does", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  compare_blocks<TestType>(42, 200, rounds_on<TestType>(60), true);
}

#if defined(KVPOLICY_TEST_SIMD)
TEST_CASE("attend_block goes from strip to strip and from chunk to chunk", "[primitive]") {
  compare_blocks<on_simd>(43, 1700, rounds_of(40), true);
  compare_blocks<on_team>(44, 1700, rounds_of(20), true);
}

/// test(cache, given, random) on blocks of up to 900 tokens, with all terms, in so many rounds.
template <class Test>
void with_blocks(std::uint64_t seed, int rounds, Test test) {
  random_source random(seed);
  for (int round = 0; round < rounds; ++round) {
    cache_shape const shape = random_shape(random, 900);
    random_cache const cache = random_cache_of(shape, random);
    block_case given = some_block(shape, random);
    draw_terms(given, random);
    test(cache, given, random);
  }
}

TEST_CASE("attend_block takes values of another width, and values that are a part of the keys' rows", "[primitive]") {
  with_blocks(47, rounds_of(40), [](random_cache const& cache, block_case const& given, random_source& random) {
    cache_shape const& shape = given.shape;
    rows const keys = cache.keys(0, given.tokens);
    rows values = random.one_in(2) ? keys : cache.values(0, given.tokens);
    std::int64_t const block = elements_of_block(shape.type);
    values.head_dim = random.between(1, shape.head_dim / block) * block;
    if (values.base == keys.base && values.head_dim == keys.head_dim) return;
    std::int64_t const count = given.queries * shape.q_heads;
    std::vector<float> want(static_cast<std::size_t>(count * values.head_dim));
    std::vector<float> got(want.size(), -7);
    auto const table_of = [&](std::vector<float>& of) {
      return table<float>{of.data(), count, values.head_dim, values.head_dim};
    };
    host::attend(given.window(), keys, values, given.kept(), given.terms, table_of(want), {});
    simd_exec exec(shape);
    attend_block(given.window(), keys, values, given.kept(), given.terms, table_of(got), exec);
    for (std::size_t i = 0; i < want.size(); ++i) REQUIRE(std::abs(got[i] - want[i]) < 1e-3f);
  });
}

TEST_CASE("attend_block gives the same bits whether one thread worked or two", "[primitive]") {
  with_blocks(45, rounds_of(20), [](random_cache const& cache, block_case const& given, random_source&) {
    on_simd alone(given.shape);
    on_team together(given.shape);
    REQUIRE(block_on(alone, cache, given) == block_on(together, cache, given));
  });
}
#endif

TEMPLATE_TEST_CASE("attend_block of one query is attend", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(46);
  for (int round = 0; round < rounds_on<TestType>(20); ++round) {
    cache_shape const shape = random_shape(random, 300);
    random_cache const cache = random_cache_of(shape, random);
    block_case given = some_block(shape, random);
    given.queries = 1;
    draw_terms(given, random);
    given.terms.window = 0;
    TestType on(shape);
    std::vector<float> const got = block_on(on, cache, given);
    std::vector<float> want(got.size());
    on.run([&](auto& exec) {
      attend(query_heads{given.vectors.data(), shape.q_heads, shape.head_dim, given.scale}, cache.keys(0, given.tokens),
             cache.values(0, given.tokens), given.kept(), given.terms,
             table<float>{want.data(), shape.q_heads, shape.head_dim, shape.head_dim}, {}, exec);
    });
    for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - want[i]) < tolerance<TestType>());
  }
}

TEMPLATE_TEST_CASE("attend_block over rows by index is attend_block over those rows alone", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(47);
  for (int round = 0; round < rounds_on<TestType>(20); ++round) {
    cache_shape const shape = random_shape(random, 200);
    random_cache const cache = random_cache_of(shape, random);
    block_case given = some_block(shape, random);
    std::vector<std::int32_t> named;
    for (std::int64_t t = 0; t < shape.max_tokens; ++t) {
      if (t + 1 == shape.max_tokens || !random.one_in(3)) named.push_back(static_cast<std::int32_t>(t));
    }
    auto const count = std::ssize(named);
    random_cache gathered(shape, layout::head_major, 16, random);
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      for (std::int64_t t = 0; t < count; ++t) {
        for (std::int64_t d = 0; d < shape.head_dim; ++d) {
          gathered.set_key(0, h, t, d, cache.key(0, h, named[static_cast<std::size_t>(t)], d));
          gathered.set_value(0, h, t, d, cache.value(0, h, named[static_cast<std::size_t>(t)], d));
        }
      }
    }
    given.tokens = count;
    given.queries = std::min(given.queries, count);
    given.lists.assign(given.lists.size(), {});
    for (range_list& list : given.lists) append(list, random.between(0, 1), count, reason::open);
    TestType on(shape);
    std::vector<float> const want = block_on(on, gathered, given);
    std::vector<float> got(want.size());
    on.run([&](auto& exec) {
      rows keys = cache.keys(0, count);
      rows values = cache.values(0, count);
      keys.indices = values.indices = named.data();
      attend_block(given.window(), keys, values, given.kept(), given.terms,
                   table<float>{got.data(), given.queries * shape.q_heads, shape.head_dim, shape.head_dim}, exec);
    });
    for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - want[i]) < tolerance<TestType>());
  }
}

TEMPLATE_TEST_CASE("attend_block's NaN reaches whom it is seen by, and nobody else", "[primitive]", KVPOLICY_TEST_EXECUTORS) {
  random_source random(48);
  for (int round = 0; round < rounds_on<TestType>(24); ++round) {
    cache_shape const shape{1,   4,
                            2,   random.pick(std::array<std::int64_t, 3>{8, 20, 64}),
                            150, random.pick(std::array{element_type::f32, element_type::f16, element_type::bf16})};
    random_cache cache(shape, random.pick(layouts), 16, random);
    block_case given = some_block(shape, random);
    given.granularity = scope::layer;
    given.lists.assign(1, {{0, 150, reason::open}});
    given.queries = 90;
    given.vectors = random.reals(given.queries * shape.q_heads * shape.head_dim, 2);
    TestType on(shape);
    std::vector<float> const clean = block_on(on, cache, given);
    std::int64_t const bad = random.between(60, 149);
    float const what = random.pick(std::array{std::numeric_limits<float>::quiet_NaN(), inf, -inf});
    bool const in_key = random.one_in(2);
    if (in_key) cache.set_key(0, 1, bad, 3, what);
    else cache.set_value(0, 1, bad, 3, what);
    std::vector<float> const got = block_on(on, cache, given);
    for (std::int64_t i = 0; i < given.queries; ++i) {
      for (std::int64_t q = 0; q < shape.q_heads; ++q) {
        bool const sees = q >= 2 && 60 + i >= bad;
        bool spoilt = false;
        double off = 0;
        for (std::int64_t d = 0; d < shape.head_dim; ++d) {
          auto const at = static_cast<std::size_t>((i * shape.q_heads + q) * shape.head_dim + d);
          spoilt = spoilt || !std::isfinite(got[at]);
          off = std::max<double>(off, std::abs(got[at] - clean[at]));
        }
        INFO("type " << static_cast<int>(shape.type) << " head size " << shape.head_dim << " row " << bad
                     << (in_key ? " key " : " value ") << what << " query " << i << " head " << q);
        if (!sees) REQUIRE(off < tolerance<TestType>());
        // An infinite logit is one, or none, of the softmax's weights.
        else if (std::isnan(what) || !in_key) REQUIRE(spoilt);
      }
    }
  }
}

TEMPLATE_TEST_CASE("attend_block yields zeros beside a sink for lists that end before the window", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(50);
  cache_shape const shape{1, 2, 1, 32, 300, element_type::f16};
  random_cache cache(shape, layout::token_major, 16, random);
  cache.set_value(0, 0, 40, 3, std::numeric_limits<float>::infinity());
  block_case given{.shape = shape, .tokens = 300, .queries = 10, .scale = 1};
  given.vectors = random.reals(10 * 64);
  given.sinks = {1, 2};
  given.terms.sinks = given.sinks.data();
  given.lists.assign(1, {{0, 100, reason::scored}});
  TestType on(shape);
  block_on(on, cache, given);  // what it leaves in the scratch is not finite
  given.terms.window = 4;
  for (float const out : block_on(on, cache, given)) REQUIRE(out == 0);
}

TEMPLATE_TEST_CASE("attend_block's large logits do not overflow, and who sees nothing yields zeros", "[primitive]",
                   KVPOLICY_TEST_EXECUTORS) {
  random_source random(49);
  cache_shape const shape{1, 3, 1, 20, 300, element_type::f32};
  random_cache cache(shape, layout::token_major, 16, random);
  for (std::int64_t d = 0; d < 20; ++d) cache.set_key(0, 0, 211, d, 40);  // wins by hundreds
  block_case given{.shape = shape, .tokens = 300, .queries = 290, .scale = 1};
  given.vectors.assign(290 * 60, 2.0f);
  given.lists.assign(1, {{50, 300, reason::scored}});
  TestType on(shape);
  std::vector<float> const got = block_on(on, cache, given);
  for (std::int64_t i = 0; i < 290; ++i) {
    for (std::int64_t d = 0; d < 60; ++d) {
      float const out = got[static_cast<std::size_t>(i * 60 + d)];
      if (i + 10 < 50) REQUIRE(out == 0);
      else if (i + 10 >= 211) REQUIRE(std::abs(out - cache.value(0, 0, 211, d % 20)) < tolerance<TestType>());
      else REQUIRE(std::abs(out) <= 1);
    }
  }
}

}  // namespace
}  // namespace kvpolicy_test
