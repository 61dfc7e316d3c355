#include "kvpolicy/policy.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include "conformance/history.hpp"

namespace kvpolicy_test {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// The contract: at choose the current token's key is there for this layer, and for no layer behind it.
TEMPLATE_TEST_CASE("choose reads no key that is not written yet", "[policy]", quest_model, streaming_model, snapkv_model,
                   chess_model) {
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
      } catch (invalid_value const&) {
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
    std::vector<float> const queries = random.reals(shape.q_heads * shape.head_dim);
    query_heads const heads{queries.data(), shape.q_heads, shape.head_dim, 1};
    query_window const window{queries.data(), 1, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, 1};
    host_exec exec;
    auto want = start(policy, shape);
    auto got = start(policy, shape);
    for (std::int64_t l = 0; l < 3; ++l) {
      prefill(policy, want, own_view{&complete, prompt}, {l}, {0, window}, exec);
      prefill(policy, got, own_view{&partial, prompt}, {l}, {0, window}, exec);
    }
    std::vector<float> const logits = random.reals(5);
    for (std::int64_t n = prompt + 1; n <= prompt + 8; ++n) {
      for (std::int64_t l = 0; l < 3; ++l) {
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          for (std::int64_t d = 0; d < shape.head_dim; ++d) partial.set_key(l, h, n - 1, d, complete.key(l, h, n - 1, d));
        }
        lists_copy const right = copy_of(choose(policy, want, own_view{&complete, n}, {l}, heads, exec));
        INFO("round " << round << " layer " << l << " tokens " << n);
        REQUIRE(copy_of(choose(policy, got, own_view{&partial, n}, {l}, heads, exec)) == right);
      }
      observe(policy, want, {logits}, exec);
      observe(policy, got, {logits}, exec);
    }
  }
}

TEST_CASE("a step on more tokens than the state was started for is refused, and one on none", "[policy]") {
  random_source random(192);
  random_cache const cache({1, 1, 1, 4, 40, element_type::f32}, layout::head_major, 8, random);
  host_exec exec;
  cache_shape const shorter{1, 1, 1, 4, 20, element_type::f32};
  presets::quest const policy{.tokens = 16, .page = 16};
  std::vector<float> const query(4, 1);
  auto state = start(policy, shorter);
  REQUIRE_NOTHROW(choose(policy, state, own_view{&cache, 20}, {0}, {query.data(), 1, 4, 1}, exec));
  REQUIRE_THROWS_AS(choose(policy, state, own_view{&cache, 21}, {0}, {query.data(), 1, 4, 1}, exec), invalid_value);
  REQUIRE_THROWS_AS(choose(policy, state, own_view{&cache, 0}, {0}, {query.data(), 1, 4, 1}, exec), invalid_value);
}

// 25 tokens still fit the two pages that 20 tokens need, so that nothing is overwritten if it is let through.
TEST_CASE("a prompt of more tokens than the state was started for is refused", "[policy]") {
  random_source random(193);
  random_cache const cache({1, 1, 1, 4, 40, element_type::f32}, layout::head_major, 8, random);
  host_exec exec;
  cache_shape const shorter{1, 1, 1, 4, 20, element_type::f32};
  presets::quest const policy{.tokens = 16, .page = 16};
  auto state = start(policy, shorter);
  REQUIRE_THROWS_AS(prefill(policy, state, own_view{&cache, 25}, {0}, {}, exec), invalid_value);
}

// An act with two fields that differ: what retains says so, and one act of two is keep_all.
TEST_CASE("a policy knows which of its acts decides", "[policy]") {
  STATIC_REQUIRE(parts_t<presets::snapkv>::retains);
  STATIC_REQUIRE_FALSE(parts_t<presets::quest>::retains);
  STATIC_REQUIRE(parts_t<presets::full>::keeps_all);
  STATIC_REQUIRE_FALSE(parts_t<presets::chess>::keeps_all);
  STATIC_REQUIRE(std::same_as<parts_t<decltype(presets::quest{}.parts())>, parts_t<presets::quest>>);
}

TEST_CASE("a composed policy without a name runs as its preset does", "[policy]") {
  random_source random(194);
  cache_shape const shape{1, 4, 2, 8, 90, element_type::f16};
  random_cache const cache(shape, layout::paged_nhd, 8, random);
  presets::quest const named{.tokens = 32, .page = 8};
  policy const composed{keep_all{},
                        keep{segment::pages{8}, pool::bounds{}, score::upper_bound{}, budget::tokens{32}, select::top{},
                             window::pages{.size = 8, .sink_pages = 0, .recent_pages = 1}, trigger::every_step{}}};
  host_exec exec;
  auto one = start(named, shape);
  auto two = start(composed, shape);
  for (std::int64_t n = 1; n <= 90; ++n) {
    std::vector<float> const queries = random.reals(32);
    query_heads const heads{queries.data(), 4, 8, 1};
    lists_copy const lists = copy_of(choose(named, one, own_view{&cache, n}, {0}, heads, exec));
    REQUIRE(copy_of(choose(composed, two, own_view{&cache, n}, {0}, heads, exec)) == lists);
  }
}

}  // namespace
}  // namespace kvpolicy_test
