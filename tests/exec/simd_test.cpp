#include "kvpolicy/exec/simd.hpp"

#include <atomic>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <new>
#include <string>

#include "conformance/executors.hpp"
#include "conformance/history.hpp"

namespace kvpolicy_test {
namespace {
std::atomic<std::int64_t> allocations{0};

void* counted(std::size_t size, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  std::size_t const rounded = (std::max<std::size_t>(size, 1) + alignment - 1) / alignment * alignment;
  void* const at = alignment > alignof(std::max_align_t) ? std::aligned_alloc(alignment, rounded) : std::malloc(rounded);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}
}  // namespace
}  // namespace kvpolicy_test

// The one file that replaces them; the other forms of new and delete come down to these. Not inlined: g++ takes a free that it
// sees for a mismatch.
void* operator new(std::size_t size) { return kvpolicy_test::counted(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return kvpolicy_test::counted(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, std::nothrow_t const&) noexcept { return kvpolicy_test::counted(size, 1); }
[[gnu::noinline]] void operator delete(void* at, std::nothrow_t const&) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::size_t) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }

namespace kvpolicy_test {
namespace {

TEST_CASE("the allocation counter counts", "[simd]") {
  std::int64_t const before = allocations;
  std::vector<int>* volatile const made = new std::vector<int>(100);  // volatile: else g++ may leave it out
  delete made;
  REQUIRE(allocations - before >= 2);
}

// Teams allocate for their threads, not for their loops: the count is taken within the leader's work.
TEMPLATE_TEST_CASE("within the room that was made nothing allocates: not prefill, choose, observe or attend", "[simd]",
                   full_model, quest_model, streaming_model, snapkv_model, chess_model, layered_quest_model, adakv_model,
                   chunkkv_model, h2o_model, tova_model, snapkv_quest_model) {
  random_source random(161);
  for (int round = 0; round < 40; ++round) {
    cache_shape shape = random_shape(random, 400, 2);
    shape.max_tokens += 65;
    shape.head_dim = random.between(1, 40);
    random_cache const cache = random_cache_of(shape, random, random.pick(contents));
    typename TestType::preset policy{};
    while (true) {
      policy = TestType::draw(shape, random);
      if constexpr (requires { policy.entropy; }) policy.entropy = -1;  // due after every page
      try {
        check(policy, shape);
        break;
      } catch (error const&) {
      }
    }
    std::int64_t const prompt = random.between(15, shape.max_tokens - 50);
    std::int64_t const observed = std::max<std::int64_t>(14, std::min(observation_queries(policy), prompt + 40));
    std::vector<float> const queries = random.reals(observed * shape.q_heads * shape.head_dim);
    std::vector<float> const logits = random.reals(3000);
    std::vector<float> out(static_cast<std::size_t>(shape.q_heads * shape.head_dim));
    std::vector<float> sums(static_cast<std::size_t>(shape.q_heads));
    query_heads const heads{queries.data(), shape.q_heads, shape.head_dim, .5f};
    auto const window_of = [&](std::int64_t tokens) -> query_window {
      return {queries.data(), std::min(observed, tokens), shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, .5f};
    };
    auto state = start(policy, shape);
    state.reserve(shape.max_tokens);
    auto const request = [&](simd_exec& exec) {
      std::int64_t const before = allocations;
      auto const steps = [&](std::int64_t first, std::int64_t last) {
        state.cut(first - 1);
        for (std::int64_t n = first; n <= last; ++n) {
          for (std::int64_t l = 0; l < 2; ++l) {
            own_view const view{&cache, n};
            selection const kept = state.choose(view, {l}, {heads}, exec);
            table<float> const to{out.data(), shape.q_heads, shape.head_dim, shape.head_dim};
            attend(heads, view.keys({l}), view.values({l}), kept, to, sums, exec);
          }
          state.observe({logits}, exec);
        }
      };
      for (std::int64_t l = 0; l < 2; ++l) state.prefill(own_view{&cache, prompt}, {l}, {0, window_of(prompt)}, exec);
      steps(prompt + 1, prompt + 30);
      steps(prompt + 11, prompt + 20);  // a tail was removed
      for (std::int64_t l = 0; l < 2; ++l)
        state.prefill(own_view{&cache, prompt + 40}, {l}, {prompt + 20, window_of(prompt + 40)}, exec);
      steps(prompt + 41, prompt + 50);
      return allocations - before;
    };
    simd_exec alone(shape);
    std::int64_t allocated = request(alone);
    INFO("round " << round);
    REQUIRE(allocated == 0);
    on_team together(shape);
    together.run([&](simd_exec& exec) { allocated = request(exec); });
    REQUIRE(allocated == 0);
  }
}

// 40 tokens, each by itself, are left of the prompt; quest reads half of the pages, so that few of those that were generated
// are neighbours: more ranges than either rule has by itself.
TEST_CASE("a retrieve that reads what a retain broke up allocates nothing", "[simd]") {
  random_source random(163);
  cache_shape const shape{1, 2, 1, 8, 1700, element_type::f32};
  random_cache const cache(shape, layout::head_major, 16, random);
  policy const both{presets::snapkv{.tokens = 40, .window = 1, .smooth = {}, .after = 0}.parts().retain,
                    presets::quest{.tokens = 512, .page = 16}.parts().retrieve};
  simd_exec exec(shape);
  std::vector<float> const queries = random.reals(1000 * 16);
  auto state = start(both, shape);
  state.reserve(shape.max_tokens);
  std::int64_t const before = allocations;
  state.prefill(own_view{&cache, 600}, {0}, {.queries = {queries.data(), 1, 2, 16, 8, 1}}, exec);
  std::size_t most = 0;
  for (std::int64_t n = 601; n <= 1600; ++n) {
    selection const kept = state.choose(own_view{&cache, n}, {0}, {queries.data() + (n - 601) * 16, 2, 8, 1}, exec);
    most = std::max(most, kept.of({0}).size());
  }
  REQUIRE(most > 45);
  REQUIRE(allocations == before);
}

TEST_CASE("a view that is larger than the executor was made for is refused in every respect", "[simd]") {
  random_source random(162);
  cache_shape const shape{1, 4, 2, 16, 64, element_type::f32};
  simd_exec exec(shape);
  std::vector<float> const queries(4096, 1.0f);
  std::vector<float> out(1 << 16);
  std::vector<std::byte> storage(1 << 20);
  auto const refused = [&](cache_shape const& larger) {
    random_cache const cache(larger, layout::head_major, 16, random);
    std::int64_t const n = larger.max_tokens;
    query_heads const heads{queries.data(), larger.q_heads, larger.head_dim, 1};
    std::vector<range_list> const lists{{{0, static_cast<std::int32_t>(n), reason::open}}};
    INFO(larger.q_heads << "/" << larger.kv_heads << " x " << larger.head_dim << ", " << n);
    REQUIRE_THROWS_AS(attend(heads, cache.keys(0, n), cache.values(0, n), selection(scope::layer, lists, larger.kv_heads),
                             table<float>{out.data(), larger.q_heads, larger.head_dim, larger.head_dim}, {}, exec),
                      invalid_value);
    query_window const window{queries.data(), 1, larger.q_heads, larger.q_heads * larger.head_dim, larger.head_dim, 1};
    REQUIRE_THROWS_AS(window_attention(window, cache.keys(0, n), {}, table<float>{out.data(), larger.kv_heads, n - 1, n}, exec),
                      invalid_value);
    rows const keys = cache.keys(0, n);
    table<float> const to{out.data(), larger.kv_heads, n, n};
    REQUIRE_THROWS_AS(seen_attention(window, keys, to, exec), invalid_value);
    REQUIRE_THROWS_AS(following_queries(window, n - 1, keys, 0, n, 4, nullptr, to, exec), invalid_value);
    REQUIRE_THROWS_AS(list_attention(heads, keys, std::span<range_list const>(lists), to, exec), invalid_value);
    table<float const> const mean{queries.data(), larger.q_heads, larger.head_dim, larger.head_dim};
    REQUIRE_THROWS_AS(gaussian_attention(keys, {.mean = mean, .covariance = {}}, 0, to, exec), invalid_value);
    if (larger.q_heads > 4 && larger.kv_heads == 2) return;  // what follows has no query heads
    REQUIRE_THROWS_AS(row_norms(keys, to, exec), invalid_value);
    REQUIRE_THROWS_AS(key_similarity(keys, to, exec), invalid_value);
    REQUIRE_THROWS_AS(partition_deviation(keys, {0, 1, n - 1}, to, exec), invalid_value);
    bounds_table const spread{storage.data(), element_type::f32, larger.kv_heads, n, larger.head_dim};
    REQUIRE_THROWS_AS(pool_mean_deviation(keys, {1, 0, n}, out.data(), spread, exec), invalid_value);
  };
  refused({1, 4, 2, 16, 65, element_type::f32});
  refused({1, 4, 2, 17, 64, element_type::f32});
  refused({1, 6, 2, 16, 64, element_type::f32});
  refused({1, 4, 4, 16, 64, element_type::f32});
  table<float> const moments{out.data(), 6, 16, 17};
  REQUIRE_THROWS_AS(query_moments({queries.data(), 1, 6, 96, 16, 1}, {}, 0, moments, table<float>{}, exec), invalid_value);
  table<float> const wider{out.data(), 4, 17, 17};
  REQUIRE_THROWS_AS(query_moments({queries.data(), 1, 4, 68, 17, 1}, {}, 0, wider, table<float>{}, exec), invalid_value);
  random_cache const longer({1, 4, 2, 16, 65, element_type::f32}, layout::head_major, 16, random);
  bounds_table const bounds{storage.data(), element_type::f32, 2, 65, 16};
  REQUIRE_THROWS_AS(pool_bounds(longer.keys(0, 65), {1, 0, 65}, bounds, exec), invalid_value);
  std::vector<std::int32_t> const k(3, 1);
  std::vector<std::int32_t> indices(3);
  table<std::int32_t> const to{indices.data(), 3, 1, 1};
  REQUIRE_THROWS_AS(top_k(table<float const>{out.data(), 1, 129, 129}, k, to, exec), invalid_value);
  REQUIRE_THROWS_AS(top_k(table<float const>{out.data(), 3, 64, 64}, k, to, exec), invalid_value);
}

// tests/CMakeLists.txt runs the suites under some of these; a CPU may lack one.
TEST_CASE("dispatch names the instruction set that it took, no better than KVPOLICY_SIMD's", "[simd][held]") {
  std::string const taken = simd_exec::instruction_set();
  REQUIRE_FALSE(taken.empty());
  char const* const held = std::getenv("KVPOLICY_SIMD");
  if (held == nullptr) return;
  constexpr std::array best_first{"AVX3", "AVX2", "SSE4", "SSSE3", "SSE2"};
  auto const at = [&](std::string const& name) { return std::ranges::find(best_first, name) - best_first.begin(); };
  REQUIRE(at(taken) >= at(held));
  REQUIRE(std::string(simd_exec::block_instruction_set()) == taken);
}

}  // namespace
}  // namespace kvpolicy_test
