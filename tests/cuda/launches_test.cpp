// How many kernels a decode step launches in a layer, and how large their grids are: what a step costs where nothing is due.
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "cuda/batch_cache.hpp"
#include "cuda/emulated.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

struct recorded {
  std::string name;
  std::int64_t blocks = 0;
  unsigned warps = 0;  ///< of a block
};

/// Notes what is launched and runs nothing; memory is nowhere. As large as an H100: 132 multiprocessors.
class recorder {
 public:
  using memory = host_memory;
  std::vector<recorded> launches;

  template <class Body>
  void launch(gpu::grid_size grid, typename Body::arguments const&) {
    if (grid.x > 0 && grid.y > 0 && grid.z > 0) launches.push_back({Body::name, grid.x * grid.y * grid.z, Body::threads / 32});
  }
  /// Blocks of each kernel on a multiprocessor are KVPOLICY_OCCUPANCY's, "name=blocks,...": resources.py knows them.
  template <class Body>
  std::int64_t blocks_wanted() const {
    char const* const given = std::getenv("KVPOLICY_OCCUPANCY");
    std::string const all = "," + std::string(given == nullptr ? "" : given);
    std::string const name = "," + std::string(Body::name) + "=";
    std::size_t const at = all.find(name);
    return 132 * (at == std::string::npos ? 4 : std::atoi(all.c_str() + at + name.size()));
  }
  gpu::buffer<std::int32_t> counters() const { return {nullptr, 4096}; }
  template <class T>
  gpu::buffer<T> scratch(std::int64_t count) const {
    return {nullptr, count};
  }
  std::int64_t scratch_used() const { return 0; }
  void release_scratch(std::int64_t) const {}
  template <class T>
  struct owned {
    std::int64_t count = 0;
    gpu::buffer<T> get() const { return {nullptr, count}; }
  };
  template <class T>
  owned<T> allocate(std::int64_t count) const {
    return {count};
  }
  template <class T>
  void upload(gpu::buffer<T>, T const*, std::int64_t) const {}
  template <class T>
  void download(T*, gpu::buffer<T const>) const {}
  template <class T>
  gpu::buffer<T const> in(T const* from, std::int64_t count) const {
    return {from, count};
  }
};

constexpr cache_shape llama_8b{
    .layers = 2, .q_heads = 32, .kv_heads = 8, .head_dim = 128, .max_tokens = 131072, .type = element_type::bf16};

/// What the third step after a short prompt launches in layers 0 and 1; grids are those of 128K tokens.
template <class Policy>
std::vector<std::vector<recorded>> launches_of(Policy const& policy) {
  constexpr std::int64_t tokens = 60;
  random_source random(1);
  cache_shape small = llama_8b;
  small.max_tokens = tokens + 4;
  batch_cache cache(small, 1, 16, page_layout::nhd, random, false);
  for (std::int64_t t = 0; t < tokens; ++t) cache.write(0, t, random);
  std::vector<float> queries(static_cast<std::size_t>(tokens * small.q_heads * small.head_dim), .1f);
  std::vector<std::int32_t> const ids(static_cast<std::size_t>(tokens), 1);
  std::vector<float> const frequencies(64, .5f);

  recorder device;
  gpu::decoder<Policy, recorder> decoder(policy, llama_8b, 1, device);
  host_exec exec;
  for (std::int64_t l = 0; l < llama_8b.layers; ++l) {
    prompt_signals prompt{};
    prompt.token_ids = ids;
    std::int64_t const window = std::min<std::int64_t>(observation_queries(policy), tokens);
    prompt.queries = {queries.data(), window, 32, 32 * 128, 128, .1f};
    prompt.rope = {frequencies.data(), 64};
    decoder.prefill(0, cache.view(), tokens, {l}, prompt, exec);
  }
  gpu::vector_rows heads{};
  heads.base = queries.data();
  heads.elements = std::ssize(queries);
  heads.sequence_stride = 32 * 128;
  heads.head_stride = 128;
  std::vector<std::vector<recorded>> made;
  for (std::int32_t now = tokens + 1; now <= tokens + 3; ++now) {
    decoder.plan(std::array{now});
    made.assign(2, {});
    for (std::int64_t l = 0; l < 2; ++l) {
      device.launches.clear();
      auto const lists = decoder.choose(cache.view(), {l}, heads, .1f, {ids.data(), 1});
      decoder.attend(cache.view(), {l}, lists, heads, .1f, heads);
      made[static_cast<std::size_t>(l)] = device.launches;
    }
  }
  return made;
}

std::vector<head_profile> const& profile() {
  static std::vector<head_profile> const made = [] {
    std::vector<head_profile> all;
    for (std::int64_t head = 0; head < 16; ++head) {
      bool const pivot = head % 8 == 0;
      all.push_back({.role = pivot ? head_role::pivot : head_role::satellite, .pivot = pivot ? -1 : 0, .stability = .5f});
    }
    return all;
  }();
  return made;
}

presets::sentencekv sentencekv() {
  static constexpr std::array<std::uint8_t, 4> boundary{0, 0, 1, 0};
  presets::sentencekv made{.after = 0};
  made.sentences.boundary = boundary;
  return made;
}

/// A layer of its own; and the first, which does for all what is done once.
template <class Policy>
void expect_launches(Policy const& policy, std::size_t layer, std::size_t first) {
  auto const found = launches_of(policy);
  std::string names;
  for (recorded const& one : found[1]) names += one.name + " ";
  INFO(names);
  CHECK(found[1].size() == layer);
  CHECK(found[0].size() == first);
}

TEST_CASE("a decode step launches as many kernels in a layer as docs/kernels.md says", "[cuda]") {
  SECTION("full") { expect_launches(presets::full{}, 1, 1); }
  SECTION("streaming_llm") { expect_launches(presets::streaming_llm{}, 1, 1); }
  SECTION("snapkv") { expect_launches(presets::snapkv{.after = 0}, 1, 1); }
  SECTION("chess") { expect_launches(presets::chess{}, 2, 6); }
  SECTION("quest") { expect_launches(presets::quest{}, 4, 4); }
  SECTION("infllm") { expect_launches(presets::infllm{}, 6, 6); }
  SECTION("sentencekv") { expect_launches(sentencekv(), 4, 5); }
  SECTION("h2o") { expect_launches(presets::h2o{}, 4, 4); }
  SECTION("tova") { expect_launches(presets::tova{}, 4, 4); }
  SECTION("twilight") { expect_launches(presets::twilight{}, 6, 6); }
  SECTION("omnikv") { expect_launches(presets::omnikv{.layers = {.dense_first = 0, .reuse = 1}}, 6, 6); }
  SECTION("rocketkv") { expect_launches(presets::rocketkv{.after = 0}, 6, 6); }
  SECTION("rkv") { expect_launches(presets::rkv{}, 2, 2); }
  SECTION("heterocache") { expect_launches(presets::heterocache{.heads = profile(), .after = 0}, 10, 10); }
}

TEST_CASE("a step is idle where the host knows that nothing is due", "[cuda]") {
  auto const steps = [](auto const& policy, std::int32_t every) {
    recorder device;
    gpu::decoder<std::decay_t<decltype(policy)>, recorder> decoder(policy, llama_8b, 1, device);
    cache_shape small = llama_8b;
    small.max_tokens = 40;
    random_source random(1);
    batch_cache cache(small, 1, 16, page_layout::nhd, random, false);
    for (std::int64_t t = 0; t < 40; ++t) cache.write(0, t, random);
    std::vector<float> const queries(40 * 32 * 128, .1f);
    host_exec exec;
    for (std::int64_t l = 0; l < llama_8b.layers; ++l) {
      prompt_signals prompt{};
      prompt.queries = {queries.data(), std::min<std::int64_t>(observation_queries(policy), 40), 32, 32 * 128, 128, .1f};
      decoder.prefill(0, cache.view(), 40, {l}, prompt, exec);
    }
    std::string found;
    for (std::int32_t now = 41; now <= 40 + 2 * every; ++now) {
      decoder.plan(std::array{now});
      found += decoder.idle() ? 'i' : 'c';
      device.launches.clear();
      decoder.standing({1});
      REQUIRE(device.launches.empty());
    }
    decoder.plan(std::array{gpu::paused});
    return found + (decoder.idle() ? 'i' : 'c');
  };
  REQUIRE(steps(presets::full{}, 2) == "iiiii");
  REQUIRE(steps(presets::snapkv{.after = 0}, 2) == "iiiii");
  REQUIRE(steps(presets::quest{}, 2) == "ccccc");
  REQUIRE(steps(presets::heterocache{.heads = profile(), .window = 3, .every = 8, .after = 0}, 8) == "iiiiiccciiiiiccci");
}

// Hidden: tests/cuda/resources.py reads the grids of HeteroCache's step between looks, and knows what an idle block costs.
TEST_CASE("grids of an idle step", "[.grids]") {
  auto const found = launches_of(presets::heterocache{.heads = profile(), .after = 0});
  for (recorded const& one : found[1]) {
    std::printf("grid %lld %u %s\n", static_cast<long long>(one.blocks), one.warps, one.name.c_str());
  }
}

/// Microseconds of plan() for 256 sequences of a model of 32 layers and 8 KV heads, on the host: the median of 101.
template <class Policy>
void time_plan(char const* name, Policy const& policy) {
  constexpr std::int64_t sequences = 256;
  constexpr std::int32_t tokens = 60;
  cache_shape shape = llama_8b;
  shape.layers = 32;
  shape.head_dim = 8;
  shape.max_tokens = 256;
  random_source random(1);
  batch_cache cache(shape, sequences, 16, page_layout::nhd, random, false);
  std::vector<float> const queries(static_cast<std::size_t>(tokens * shape.q_heads * shape.head_dim), .1f);
  recorder device;
  gpu::decoder<Policy, recorder> decoder(policy, shape, sequences, device);
  host_exec exec;
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      prompt_signals prompt{};
      std::int64_t const window = std::min<std::int64_t>(observation_queries(policy), tokens);
      prompt.queries = {queries.data(), window, shape.q_heads, shape.q_heads * shape.head_dim, shape.head_dim, .1f};
      decoder.prefill(s, cache.view(), tokens, {l}, prompt, exec);
    }
  }
  std::vector<double> took;
  for (std::int32_t now = tokens + 1; now <= tokens + 101; ++now) {
    std::vector<std::int32_t> const lengths(sequences, now);
    auto const begun = std::chrono::steady_clock::now();
    decoder.plan(lengths);
    took.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count());
  }
  std::ranges::nth_element(took, took.begin() + 50);
  std::printf("plan %-14s %7.1f us\n", name, took[50]);
}

// Hidden: docs/kernels.md has what this prints.
TEST_CASE("what plan() takes on the host", "[.plan]") {
  time_plan("full", presets::full{});
  time_plan("snapkv", presets::snapkv{.after = 0});
  time_plan("h2o", presets::h2o{.tokens = 40});
  time_plan("quest", presets::quest{.tokens = 40});
  time_plan("omnikv", presets::omnikv{.tokens = 40});
  time_plan("snapkv+quest",
            policy{presets::snapkv{.tokens = 50, .after = 0}.parts().retain, presets::quest{.tokens = 40}.parts().retrieve});
}

}  // namespace
}  // namespace kvpolicy_test
