// What needs a real GPU: addresses above 2^31, and errors that come from the device.
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "cuda/batch_run.hpp"
#include "cuda/gpu/gpu_device.hpp"
#include "cuda/gpu/own_scorer.hpp"
#include "kvpolicy/gpu/attention/launch_attend.hpp"
#include "kvpolicy/presets/quest.hpp"

namespace kvpolicy_test {
namespace {

// Hidden: tests/cuda/lease.sh runs each under a tool of compute-sanitizer, which must report it, or it was not looking.
TEST_CASE("planted for memcheck", "[.planted]") { run(planted::write_past_the_end); }
TEST_CASE("planted for initcheck", "[.planted]") { run(planted::read_before_write); }
TEST_CASE("planted for racecheck", "[.planted]") { run(planted::race); }
TEST_CASE("planted for synccheck", "[.planted]") { run(planted::divergent_barrier); }

TEST_CASE("a workspace that is too small is refused by name", "[gpu]") {
  gpu::stream_device device(test_stream(), 1 << 20);
  REQUIRE_THROWS_AS(device.scratch<float>(1 << 20), gpu::workspace_exceeded);
}

TEST_CASE("an engine's own workspace is used, and refused by name where it is not aligned", "[gpu]") {
  gpu::device_array const memory(1 << 16);
  gpu::stream_device device(test_stream(), gpu::buffer<std::byte>{memory.data(), memory.bytes()});
  gpu::scratch_scope<gpu::stream_device> const scope(device);
  REQUIRE(reinterpret_cast<std::byte*>(device.scratch<float>(16).data) == memory.data());
  REQUIRE_THROWS_AS(device.scratch<float>(1 << 15), gpu::workspace_exceeded);
  REQUIRE_THROWS_AS(gpu::stream_device(test_stream(), gpu::buffer<std::byte>{memory.data() + 4, 1024}), gpu::device_error);
}

/// Counts what was not given back.
struct counting_pool final : gpu::device_allocator {
  std::int64_t bytes = 0;
  std::int64_t calls = 0;
  void* allocate(std::int64_t size, gpu::stream on) override {
    void* const made = gpu::cuda_allocator().allocate(size, on);
    bytes += size;
    ++calls;
    return made;
  }
  void release(void* data, std::int64_t size, gpu::stream on) noexcept override {
    bytes -= size;
    gpu::cuda_allocator().release(data, size, on);
  }
};

TEST_CASE("all memory of a device and its decoder comes from an engine's pool, and goes back there", "[gpu]") {
  counting_pool pool;
  {
    gpu::stream_device device(test_stream(), 1 << 20, pool);
    REQUIRE(pool.bytes >= 1 << 20);
    std::int64_t const before = pool.bytes;
    cache_shape const shape{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .max_tokens = 4096};
    gpu::decoder<presets::quest, gpu::stream_device> const decoder(presets::quest{.tokens = 512}, shape, 2, device);
    REQUIRE(pool.bytes - before >= 2 * 2 * 2 * 4096 / 8 * 4);  // what the steps list of all pages
    REQUIRE(pool.calls > 2);
  }
  REQUIRE(pool.bytes == 0);
}

TEST_CASE("a grid beyond the device's limits is refused by the kernel's name", "[gpu]") {
  gpu_device device;
  gpu::detail::merge_heads_body::arguments a{};
  try {
    device.launch<gpu::detail::merge_heads_body>({1, 70000, 1}, a);
    FAIL("70,000 blocks in y were launched");
  } catch (gpu::device_error const& e) {
    REQUIRE(std::string(e.what()).find("merge_heads on 1 x 70000 x 1") != std::string::npos);
  }
}

TEST_CASE("a scorer of one function on the device keeps what it keeps on the host", "[gpu]") {
  static constexpr auto on_host =
      score_tokens([](auto key, auto value, auto age) { return norm(value) + dot(key, value) - static_cast<float>(age) / 64; });
  random_source random(302);
  for (element_type const type : types) {
    cache_shape const shape{.layers = 1, .q_heads = 4, .kv_heads = 2, .head_dim = 24, .max_tokens = 91, .type = type};
    batch_cache cache(shape, 1, 7, page_layout::nhd, random, false);
    for (std::int64_t t = 0; t < 91; ++t) cache.write(0, t, random);
    gpu_device().send();
    retain_options const keep{.tokens = 30, .sinks = 2};
    gpu::sequence_view<gpu::paged_batch, host_memory> const view{cache.host_view(), shape, 0, 90};
    host_exec exec;
    auto const policy = retain(on_host, keep);
    auto state = start(policy, shape);
    state.prefill(view, {0}, {}, exec);
    auto next = view;
    ++next.count;
    selection const kept = state.choose(next, {0}, {}, exec);
    for (std::int64_t h = 0; h < 2; ++h) {
      scored_on_device const found = score_on_device(cache, shape, 90, keep, h);
      REQUIRE(found.by_verbs == tokens_of(kept.of({h})));
      REQUIRE(found.by_decoder == found.by_verbs);
      for (std::int64_t t = 0; t < 90; ++t) {
        std::vector<float> key(24);
        view.keys({0}).load({h}, {t}, key);
        float const want = norm(row(key.data(), key.size()));
        REQUIRE(std::abs(found.key_norms[static_cast<std::size_t>(t)] - want) <= 1e-5f * want);
      }
    }
  }
}

/// Steps of quest, each a replay of one captured step, beside the four verbs' on the oracle.
void replay(cache_shape const& shape, std::int64_t sequences, std::int64_t prompt, int steps) {
  random_source random(301);
  presets::quest policy{.tokens = 64};
  policy.metadata = pools::bounds::kind::range;  // exact; spreads are not
  batch_run<presets::quest> run(policy, shape, sequences, true, random);
  REQUIRE(run.step().empty());
  for (std::int64_t s = 0; s < sequences; ++s) run.begin(s, random.between(prompt / 2, prompt));
  for (int step = 0; step < steps; ++step) {
    std::string const fault = run.step();
    INFO("step " << step << ": " << fault);
    REQUIRE(fault.empty());
  }
}

TEST_CASE("a captured step is replayed 1,000 times", "[gpu]") {
  replay({.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .max_tokens = 1100, .type = element_type::f16}, 3, 90,
         1000);
}

TEST_CASE("a batch of 256 sequences", "[gpu]") {
  replay({.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .max_tokens = 160, .type = element_type::bf16}, 256, 140,
         8);
}

TEST_CASE("a million tokens", "[gpu]") {
  constexpr std::int64_t most = std::int64_t{1} << 20;
  replay({.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 64, .max_tokens = most, .type = element_type::bf16}, 1,
         most - 20, 10);
}

// Rows behind 2^31 elements: one head of 128 channels, the last of 20 million tokens.
TEST_CASE("attention reaches rows above 2^31", "[gpu]") {
  constexpr std::int64_t tokens = 20'000'000;
  constexpr std::int64_t dim = 128;
  gpu_device device;
  auto const cache = device.allocate<std::uint16_t>(tokens * dim);
  auto const list = device.allocate<std::int32_t>(4);
  auto const named = device.allocate<std::int32_t>(1);
  auto const queries = device.allocate<float>(dim);
  auto const out = device.allocate<float>(dim);
  std::array<std::int32_t, 4> listed{};
  std::vector<std::uint16_t> rows;
  for (std::int32_t i = 0; i < 4; ++i) {
    listed[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(tokens) - 4 + i;
    rows.resize(rows.size() + dim, float_to_half(static_cast<float>(i)));
  }
  std::int32_t const four = 4;
  // Token i's channels are i: with a query of log 2 / dim its logit is i log 2, and weights are 1, 2, 4 and 8 of 15.
  std::vector<float> const query(dim, std::log(2.0f) / static_cast<float>(dim));
  device.upload(gpu::buffer<std::uint16_t>{cache.get().data + (tokens - 4) * dim, 4 * dim}, rows.data(), 4 * dim);
  device.upload(list.get(), listed.data(), 4);
  device.upload(named.get(), &four, 1);
  device.upload(queries.get(), query.data(), dim);
  gpu::detail::decode_attention a{};
  a.queries.base = queries.get().data;
  a.queries.elements = dim;
  a.queries.sequence_stride = a.queries.head_stride = dim;
  a.keys.base = cache.get().data;
  a.keys.elements = tokens * dim;
  a.keys.heads = 1;
  a.keys.head_dim = dim;
  a.keys.token_stride = dim;
  a.keys = gpu::finished(a.keys);
  a.values = a.keys;
  a.lists.units = list.get();
  a.lists.stride = 4;
  a.lists.named = named.get();
  a.lists.tokens.all = tokens;
  a.most_tokens = 4;
  a.out = a.queries;
  a.out.base = out.get().data;
  gpu::detail::launch_attend(device, a);
  for (float const x : device.read(out.get(), 0, dim)) REQUIRE(std::abs(x - 34.0f / 15) <= 1e-4f);
}

}  // namespace
}  // namespace kvpolicy_test
