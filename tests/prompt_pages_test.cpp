#include "kvpolicy/prompt_pages.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <set>
#include <string>

#include "conformance/executors.hpp"
#include "conformance/naive.hpp"
#include "conformance/rounds.hpp"

namespace kvpolicy_test {
namespace {

using Catch::Matchers::ContainsSubstring;

query_window block_of(std::vector<float> const& vectors, cache_shape const& shape, std::int64_t count) {
  return {vectors.data(), count, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, .3f};
}

/// The pages that definitions would choose for a KV head, in double precision: mean and deviation of the page's keys as bounds,
/// the largest of the group's scores, softmax over pages, summed over the queries that are asked.
std::vector<double> naive_mass(random_cache const& cache, prompt_pages const& how, query_window const& block, std::int64_t h,
                               std::int64_t first, std::int64_t last) {
  cache_shape const& shape = cache.shape();
  std::vector<double> mass(static_cast<std::size_t>(last - first));
  for (std::int64_t t = block.tokens - 1; t >= 0; t -= how.every) {
    std::vector<double> logits;
    for (std::int64_t page = first; page < last; ++page) {
      double most = -1e30;
      for (std::int64_t q = h * shape.group(); q < (h + 1) * shape.group(); ++q) {
        double bound = 0;
        for (std::int64_t d = 0; d < shape.head_dim; ++d) {
          double mean = 0;
          double square = 0;
          for (std::int64_t i = 0; i < how.page; ++i)
            mean += static_cast<double>(cache.key(0, h, page * how.page + i, d)) / how.page;
          for (std::int64_t i = 0; i < how.page; ++i)
            square += std::pow(static_cast<double>(cache.key(0, h, page * how.page + i, d)) - mean, 2) / how.page;
          double const query = block.at(t, q)[d];
          bound += std::max(query * (mean + std::sqrt(square)), query * (mean - std::sqrt(square)));
        }
        most = std::max(most, bound);
      }
      logits.push_back(most * static_cast<double>(block.scale));
    }
    std::vector<double> const weights = naive::softmax(logits);
    for (std::size_t i = 0; i < mass.size(); ++i) mass[i] += weights[i];
  }
  return mass;
}

TEMPLATE_TEST_CASE("a block reads sinks, recent tokens, and the pages with most of its estimated attention", "[prompt_pages]",
                   KVPOLICY_TEST_CPU_EXECUTORS) {
  random_source random(401);
  for (int round = 0; round < rounds_of(40); ++round) {
    cache_shape shape = random_shape(random, 400);
    shape.max_tokens = random.between(150, 700);
    shape.type = element_type::f32;
    random_cache const cache = random_cache_of(shape, random);
    prompt_pages const how{.share = .1 + .4 * std::abs(static_cast<double>(random.real())),
                           .least = static_cast<std::int32_t>(random.between(0, 40)),
                           .page = static_cast<std::int32_t>(random.between(1, 20)),
                           .sinks = static_cast<std::int32_t>(random.between(0, 30)),
                           .recent = static_cast<std::int32_t>(random.between(0, 40)),
                           .from = 60,
                           .block = 16,
                           .every = static_cast<std::int32_t>(random.between(1, 20))};
    std::vector<float> const vectors = random.reals(how.block * shape.q_heads * shape.head_dim, 2);
    TestType on(shape);
    prompt_pages::state state = how.start(shape);
    on.run([&](auto& exec) {
      for (std::int64_t end = how.block; end <= shape.max_tokens; end += how.block) {
        query_window const block = block_of(vectors, shape, how.block);
        selection const kept = state.choose(own_view{&cache, end}, {0}, block, exec);
        std::int64_t const before = end - how.block;
        std::int64_t const first = (how.sinks + how.page - 1) / how.page;
        std::int64_t const last = std::max(first, (before - how.recent) / how.page);
        std::int64_t const wanted =
            std::max<std::int64_t>((how.least + how.page - 1) / how.page,
                                   static_cast<std::int64_t>(std::ceil(how.share * static_cast<double>(last - first))));
        INFO("round " << round << ", " << end << " tokens");
        if (before < how.from || wanted >= last - first) {
          REQUIRE(kept.tokens() == end * shape.kv_heads);
          continue;
        }
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          std::vector<double> const mass = naive_mass(cache, how, block, h, first, last);
          std::vector<double> sorted = mass;
          std::ranges::sort(sorted, std::greater{});
          double const least_kept = sorted[static_cast<std::size_t>(wanted - 1)];
          std::set<std::int64_t> read;
          for (token_range const& r : kept.of({h})) {
            for (std::int64_t t = r.begin; t < r.end; ++t) read.insert(t);
          }
          REQUIRE(std::ssize(read) == first * how.page + wanted * how.page + end - last * how.page);
          for (std::int64_t t = 0; t < first * how.page; ++t) REQUIRE(read.contains(t));
          for (std::int64_t t = last * how.page; t < end; ++t) REQUIRE(read.contains(t));
          for (std::int64_t page = first; page < last; ++page) {
            double const here = mass[static_cast<std::size_t>(page - first)];
            if (read.contains(page * how.page)) REQUIRE(here >= least_kept * (1 - 1e-3));
            else REQUIRE(here <= least_kept * (1 + 1e-3));
          }
        }
      }
    });
  }
}

TEST_CASE("pages behind a cut are summarised anew", "[prompt_pages]") {
  random_source random(402);
  cache_shape const shape{2, 4, 2, 32, 640, element_type::f16};
  prompt_pages const how{.share = .2, .least = 0, .page = 8, .sinks = 8, .recent = 16, .from = 64, .block = 32};
  random_cache cache = random_cache_of(shape, random);
  std::vector<float> const vectors = random.reals(how.block * shape.q_heads * shape.head_dim, 2);
  host_exec exec;
  auto const lists = [&](prompt_pages::state& state, std::int64_t l) {
    selection const kept = state.choose(own_view{&cache, 640}, {l}, block_of(vectors, shape, how.block), exec);
    return std::vector(kept.lists().begin(), kept.lists().end());
  };
  prompt_pages::state state = how.start(shape);
  for (std::int64_t l = 0; l < 2; ++l) lists(state, l);
  cache.fill(204, 640, random);
  state.cut(204);
  prompt_pages::state fresh = how.start(shape);
  for (std::int64_t l = 0; l < 2; ++l) REQUIRE(lists(state, l) == lists(fresh, l));
}

TEST_CASE("keys that are NaN do not keep a block from choosing", "[prompt_pages]") {
  random_source random(403);
  cache_shape const shape{1, 2, 1, 16, 400, element_type::f32};
  random_cache cache(shape, layout::head_major, 16, random);
  for (std::int64_t d = 0; d < 16; ++d) cache.set_key(0, 0, 100, d, std::numeric_limits<float>::quiet_NaN());
  prompt_pages const how{.share = .2, .least = 0, .page = 8, .sinks = 8, .recent = 16, .from = 64, .block = 32};
  std::vector<float> const vectors = random.reals(32 * 2 * 16);
  host_exec exec;
  prompt_pages::state state = how.start(shape);
  selection const kept = state.choose(own_view{&cache, 400}, {0}, block_of(vectors, shape, 32), exec);
  for (token_range const& r : kept.of({0})) REQUIRE((r.end <= 96 || r.begin >= 104));
}

TEST_CASE("a prompt policy that can't be is refused by name", "[prompt_pages]") {
  cache_shape const shape{1, 2, 1, 16, 4000, element_type::f32};
  auto const refused = [&](prompt_pages const& how, char const* message) {
    REQUIRE_THROWS_AS(how.start(shape), invalid_value);
    REQUIRE_THROWS_WITH(check(how, shape), ContainsSubstring(message));
  };
  refused({.share = 0, .from = 0}, "share is 0.000000; it must be above 0 and at most 1");
  refused({.share = 1.5, .from = 0}, "share is 1.5");
  refused({.page = 0, .from = 0}, "page is 0; it must be at least 1");
  refused({.recent = -1, .from = 0}, "recent is -1");
  refused({.from = 0, .block = 0}, "block is 0");
  refused({.from = 4000}, "from is 4000; it must be below the context of 4000");
}

TEST_CASE("a block that does not fit the sequence is refused by name", "[prompt_pages]") {
  random_source random(404);
  cache_shape const shape{2, 2, 1, 16, 400, element_type::f32};
  cache_shape larger = shape;
  larger.max_tokens = 600;
  random_cache cache(larger, layout::head_major, 16, random);
  prompt_pages const how{.share = .2, .least = 0, .page = 8, .sinks = 8, .recent = 16, .from = 64, .block = 32};
  std::vector<float> const vectors = random.reals(600 * 2 * 16);
  host_exec exec;
  prompt_pages::state state = how.start(shape);
  auto const refused = [&](std::int64_t tokens, std::int32_t layer, query_window const& block, char const* message) {
    CHECK_THROWS_WITH(state.choose(own_view{&cache, tokens}, {layer}, block, exec), ContainsSubstring(message));
  };
  query_window const block = block_of(vectors, shape, 32);
  refused(500, 0, block, "the sequence was started for 400");
  refused(200, 5, block, "layer 5; there are 0 to 1");
  refused(20, 0, block, "a block of 32 queries, the last of 20");
  query_window bad = block;
  bad.scale = unset_scale;
  refused(200, 0, bad, "scale");
  bad = block;
  bad.head_stride = 0;
  refused(200, 0, bad, "head_stride");
  CHECK_NOTHROW(state.choose(own_view{&cache, 200}, {0}, block, exec));
  refused(100, 0, block, "a block that begins at token 68, where 200 were seen; call cut()");
  state.cut(68);
  CHECK_NOTHROW(state.choose(own_view{&cache, 100}, {0}, block, exec));
}

}  // namespace
}  // namespace kvpolicy_test
