// A request that is saved while nobody knows yet which tokens of its last step stay goes on where it was.
#include "kvpolicy/detail/unsettled_tokens.hpp"

#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "conformance/small_presets.hpp"
#include "kvpolicy/kvpolicy.hpp"
#include "kvpolicy/testing/random_cache.hpp"

namespace kvpolicy {
namespace {

constexpr cache_shape shape{
    .layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .max_tokens = 160, .type = element_type::f32};

template <class Request>
std::vector<range_list> lists_of_step(Request& it, testing::random_cache const& cache, testing::random_signals const& said,
                                      std::int64_t tokens) {
  host_exec exec;
  std::vector<range_list> made;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    selection const kept = it.choose(cache.view(tokens), {l}, said.step(tokens), exec);
    made.insert(made.end(), kept.lists().begin(), kept.lists().end());
  }
  it.observe(said.outcome(tokens), exec);
  return made;
}

TEST_CASE("every preset's request goes on where it was saved, in the middle of a step of several tokens", "[archive]") {
  presets::all::each([](auto const& preset) {
    INFO(preset.name);
    auto const policy = kvpolicy_test::small(preset);
    testing::random_source random(5);
    testing::random_cache const cache(shape, random, testing::content::normal);
    testing::random_signals const said(shape, random);
    host_exec exec;
    auto request = start(policy, shape);
    for (std::int64_t l = 0; l < shape.layers; ++l) request.prefill(cache.view(100), {l}, said.prompt(0, 100), exec);
    for (std::int64_t l = 0; l < shape.layers; ++l) request.choose(cache.view(106), {l}, said.step(106, 6), exec);
    for (std::int64_t tokens = 101; tokens < 104; ++tokens) request.observe(said.outcome(tokens), exec);
    std::vector<std::byte> bytes;
    state_writer writer(bytes);
    request.archive(writer);
    auto again = start(policy, shape);
    state_reader reader(bytes);
    again.archive(reader);
    // Three of the six stayed.
    for (std::int64_t tokens = 104; tokens < 120; ++tokens)
      REQUIRE(lists_of_step(again, cache, said, tokens) == lists_of_step(request, cache, said, tokens));

    int refused = 0;
    for (int round = 0; round < 200; ++round) {
      std::vector<std::byte> damaged = bytes;
      for (int i = 0; i < 3; ++i) {
        auto const at = static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(damaged.size()) - 1));
        damaged[at] = static_cast<std::byte>(random.between(0, 255));
      }
      auto broken = start(policy, shape);
      state_reader damaged_reader(damaged);
      try {
        broken.archive(damaged_reader);
      } catch (invalid_value const&) {
        ++refused;
      }
    }
    CHECK(refused > 0);
  });
}

}  // namespace
}  // namespace kvpolicy
