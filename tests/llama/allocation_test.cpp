// A policy's decode step allocates nothing: as many calls of operator new as the engine's own step.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "allocation_count.hpp"
#include "decoding.hpp"
#include "kvpolicy/presets/chess.hpp"
#include "kvpolicy/presets/full.hpp"
#include "kvpolicy/presets/h2o.hpp"
#include "kvpolicy/presets/infllm.hpp"
#include "kvpolicy/presets/quest.hpp"
#include "kvpolicy/presets/snapkv.hpp"
#include "kvpolicy/presets/streaming_llm.hpp"
#include "kvpolicy/presets/tova.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

/// Calls of operator new in each llama_decode of one token, from the second after the prompt on; over a graph boundary too.
std::vector<std::int64_t> counts_of(llama_model* model, session* policy, int threads) {
  decoder with(model, policy, {.threads = threads});
  with.feed(random_tokens(240));
  with.feed(1);  // what grows by half has room for 180 steps now, and then for more than come
  std::vector<std::int64_t> counts;
  for (llama_token token : random_tokens(260, 3)) {
    llama_batch const batch = llama_batch_get_one(&token, 1);
    std::int64_t const before = allocations();
    int const status = llama_decode(with.context(), batch);
    counts.push_back(allocations() - before);
    REQUIRE(status == 0);
  }
  return counts;
}

TEST_CASE("a policy's step allocates nothing beside what the engine's step does, but where its tables grow by half") {
  model_owner const model = tiny_llama();
  int const threads = GENERATE(1, 2);
  std::vector<std::int64_t> const engine = counts_of(model.get(), nullptr, threads);
  CHECK(engine.front() > 0);  // the engine's calls are seen
  auto const check_same = [&](session&& policy) {
    std::vector<std::int64_t> const counts = counts_of(model.get(), &policy, threads);
    auto const grows = std::ranges::mismatch(counts, engine);
    if (grows.in1 == counts.end()) return;
    CHECK(grows.in1 - counts.begin() > 100);
    CHECK(std::equal(grows.in1 + 1, counts.end(), grows.in2 + 1));
  };
  SECTION("full") { check_same(session(presets::full{})); }
  SECTION("quest") { check_same(session(presets::quest{.tokens = 64})); }
  SECTION("snapkv") { check_same(session(presets::snapkv{.tokens = 64, .after = 0})); }
  SECTION("streaming_llm") { check_same(session(presets::streaming_llm{.tokens = 64})); }
  SECTION("h2o") { check_same(session(presets::h2o{.tokens = 64})); }
  SECTION("tova") { check_same(session(presets::tova{.tokens = 64})); }
  SECTION("infllm") { check_same(session(presets::infllm{.tokens = 96, .block = 16})); }
  SECTION("snapkv with quest") {
    check_same(session(
        policy{presets::snapkv{.tokens = 96, .after = 0}.parts().retain, presets::quest{.tokens = 64}.parts().retrieve}));
  }
  SECTION("chess, chosen anew after each page") {
    check_same(session(
        presets::chess{.fractions = {.tokens = 64}, .units = {.page = 8}, .recent_pages = 2, .entropy = -1, .rest = 0}));
  }
  SECTION("detached") {
    session policy(presets::quest{.tokens = 64});
    policy.detach();
    check_same(std::move(policy));
  }
}

}  // namespace
}  // namespace kvpolicy::llama::testing
