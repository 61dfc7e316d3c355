#include "kvpolicy/gpu/pooling/unit_vectors.hpp"

#include <catch2/catch_test_macros.hpp>
#include <set>

#include "conformance/random_cache.hpp"
#include "cuda/emulated.hpp"
#include "kvpolicy/gpu/base/device_memory.hpp"
#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/kvpolicy.hpp"

namespace kvpolicy_test {
namespace {

/// Counts what is allocated, and has so much.
class small_device : public emulated_device {
 public:
  explicit small_device(std::int64_t most = INT64_MAX) : most_(most) {}
  template <class T>
  owned<T> allocate(std::int64_t count) {
    auto const bytes = count * static_cast<std::int64_t>(sizeof(T));
    if (bytes > most_ - used) throw gpu::device_memory_exceeded("out of device memory");
    used += bytes;
    return emulated_device::allocate<T>(count);
  }
  std::int64_t used = 0;

 private:
  std::int64_t most_;
};

constexpr cache_shape shape{
    .layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 8, .max_tokens = 4096, .type = element_type::f16};

/// Where the first elements of a sequence's units lie, of every layer and head.
std::set<std::uintptr_t> places_of(gpu::detail::unit_vectors<small_device> const& of, std::int64_t sequence,
                                   std::int64_t units) {
  std::set<std::uintptr_t> found;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    gpu::batch_rows const rows = of.rows({l});
    for (std::int64_t u = 0; u < units; ++u) {
      std::int64_t const row = 2 * u;
      std::int64_t const place = rows.places.data[sequence * rows.page_table_stride + row / rows.page_size];
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        std::int64_t const element = place + h * rows.head_stride + row % rows.page_size * rows.token_stride;
        found.insert(reinterpret_cast<std::uintptr_t>(rows.base) + static_cast<std::uintptr_t>(element * size_of(shape.type)));
      }
    }
  }
  return found;
}

TEST_CASE("unit_vectors: sequences come and go, grow where they are, and share nothing", "[gpu]") {
  random_source random(1);
  constexpr std::int64_t sequences = 4;
  constexpr std::int64_t most = 200;
  small_device device;
  gpu::detail::unit_vectors<small_device> vectors(shape, sequences, most, 2, device);
  std::int64_t units[sequences] = {};
  std::int64_t held = 0;  // bytes of runs at the fullest moment
  std::int64_t const empty = device.used;
  for (int turn = 0; turn < 300; ++turn) {
    auto const s = random.between(0, sequences - 1);
    std::int64_t const had = units[s];
    auto const before = places_of(vectors, s, had);
    units[s] = random.one_in(5) ? 0 : random.one_in(5) ? random.between(0, had) : std::min(most, had + random.between(0, 40));
    vectors.hold(s, units[s]);
    auto const now = places_of(vectors, s, std::min(had, units[s]));
    REQUIRE(std::ranges::includes(before, now));

    std::set<std::uintptr_t> all;
    std::int64_t runs = 0;
    for (std::int64_t q = 0; q < sequences; ++q) {
      all.merge(places_of(vectors, q, units[q]));
      runs += gpu::divided_up(units[q], vectors.run);
    }
    REQUIRE(std::ssize(all) == shape.layers * shape.kv_heads * (units[0] + units[1] + units[2] + units[3]));
    held = std::max(held, runs * vectors.run * shape.layers * shape.kv_heads * 2 * shape.head_dim * size_of(shape.type));
    REQUIRE(device.used - empty <= held + held / 8);
  }
}

TEST_CASE("unit_vectors: where a device has too little, a sequence keeps what it has", "[gpu]") {
  small_device device(std::int64_t{1} << 16);
  gpu::detail::unit_vectors<small_device> vectors(shape, 2, 512, 2, device);
  vectors.hold(0, 100);
  auto const before = places_of(vectors, 0, 100);
  REQUIRE_THROWS_AS(vectors.hold(0, 512), gpu::device_memory_exceeded);
  REQUIRE(places_of(vectors, 0, 100) == before);
  vectors.hold(0, 0);
  vectors.hold(1, 100);  // what another gave back
  REQUIRE(places_of(vectors, 1, 100).size() == before.size());
}

TEST_CASE("unit_vectors: what is needed is allocated where what would be in advance does not fit", "[gpu]") {
  small_device probe;
  gpu::detail::unit_vectors<small_device> first(shape, 2, 8192, 2, probe);
  std::int64_t const empty = probe.used;
  first.hold(0, 16 * 64);
  std::int64_t const run = (probe.used - empty) / 64;
  small_device device(empty + 65 * run);  // one run more; in advance eight would come
  gpu::detail::unit_vectors<small_device> vectors(shape, 2, 8192, 2, device);
  vectors.hold(0, 16 * 64);
  vectors.hold(0, 16 * 64 + 1);
  REQUIRE_THROWS_AS(vectors.hold(1, 1), gpu::device_memory_exceeded);
}

TEST_CASE("a decoder's summaries follow its texts, not max_tokens", "[gpu]") {
  cache_shape longest = shape;
  longest.max_tokens = std::int64_t{1} << 17;
  small_device device;
  gpu::decoder<presets::quest, small_device> const decoder({}, longest, 8, device);
  std::int64_t const cache = 8 * longest.layers * longest.kv_heads * longest.head_dim * longest.max_tokens * 4;
  INFO(device.used << " bytes beside caches of " << cache);
  REQUIRE(device.used < cache / 10);
}

}  // namespace
}  // namespace kvpolicy_test
