#include "kvpolicy/gpu/offload/resident_rows.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <numeric>
#include <set>
#include <span>

#include "cuda/batch_cache.hpp"
#include "cuda/test_device.hpp"
#include "kvpolicy/gpu/attention/launch_attend.hpp"

namespace kvpolicy_test {
namespace {

cache_shape resident_shape(random_source& random) {
  std::int64_t const heads = random.between(1, 3);
  return {.layers = 1,
          .q_heads = heads * 2,
          .kv_heads = heads,
          .head_dim = 8 * random.between(1, 4),
          .max_tokens = random.between(20, 90),
          .type = random.pick(types)};
}

/// A head's slots: what is not listed for longest goes first, lower slots first among equals.
struct naive_slots {
  struct slot {
    std::int32_t token = -1;
    int used = 0;
  };
  std::vector<slot> slots;

  /// How many of the list's tokens had to come.
  std::int64_t list(std::vector<std::int32_t> const& tokens, int step) {
    std::vector<std::int32_t> absent;
    for (std::int32_t const t : tokens) {
      auto const there = std::ranges::find(slots, t, &slot::token);
      if (there != slots.end()) there->used = step;
      else absent.push_back(t);
    }
    std::vector<std::size_t> order(slots.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return slots[i].used; });
    order.resize(absent.size());
    std::ranges::sort(order);
    for (std::size_t i = 0; i < absent.size(); ++i) slots[order[i]] = {absent[i], step};
    return std::ssize(absent);
  }
  void forget() {
    for (slot& s : slots) s.token = -1;
  }
};

/// A decoder whose lists fit whatever slots there are.
struct fits {
  static std::int64_t most_listed(layer_id, std::int64_t, head_id) noexcept { return 1; }
};

TEST_CASE("what is listed is brought once, and attention over slots is attention over tokens", "[cuda]") {
  random_source random(91);
  std::int64_t hits = 0;
  for (int round = 0; round < 30; ++round) {
    cache_shape const shape = resident_shape(random);
    std::int64_t const sequences = random.between(1, 3);
    batch_cache cache(shape, sequences, static_cast<std::int32_t>(random.between(1, 20)),
                      random.one_in(2) ? page_layout::nhd : page_layout::hnd, random, true);
    for (std::int64_t s = 0; s < sequences; ++s) {
      for (std::int64_t t = 0; t < shape.max_tokens; ++t) cache.write(s, t, random);
    }
    auto const slots = static_cast<std::int32_t>(random.between(4, 24));
    test_device device;
    gpu::resident_rows<test_device> resident(shape, sequences, std::span(&slots, 1), device);
    resident.plan(fits{});
    std::int64_t const rows = sequences * shape.kv_heads;
    std::vector<naive_slots> naive(static_cast<std::size_t>(rows),
                                   naive_slots{std::vector<naive_slots::slot>(static_cast<std::size_t>(slots))});
    std::int64_t const size = shape.q_heads * shape.head_dim;
    shared_vector<float> queries(static_cast<std::size_t>(sequences * size));
    shared_vector<float> by_slot(queries.size());
    shared_vector<float> by_token(queries.size());
    shared_vector<std::int32_t> tokens(static_cast<std::size_t>(rows * slots));
    shared_vector<std::int32_t> counts(static_cast<std::size_t>(rows));
    for (int step = 0; step < 12; ++step) {
      if (step == 8) {
        resident.forget(sequences - 1, device);
        for (std::int64_t h = 0; h < shape.kv_heads; ++h)
          naive[static_cast<std::size_t>((sequences - 1) * shape.kv_heads + h)].forget();
      }
      std::vector<std::int64_t> came;
      for (std::int64_t r = 0; r < rows; ++r) {
        std::set<std::int32_t> some;
        // Close to the last step's list, so that rows are met again; of any length up to all slots, or none.
        std::int64_t const wanted = random.one_in(8) ? 0 : random.between(1, std::min<std::int64_t>(slots, shape.max_tokens));
        std::int64_t const from = random.between(0, shape.max_tokens - 1);
        while (std::ssize(some) < wanted)
          some.insert(static_cast<std::int32_t>((from + random.between(0, 2 * wanted)) % shape.max_tokens));
        std::vector<std::int32_t> const list(some.begin(), some.end());
        std::ranges::copy(list, tokens.begin() + r * slots);
        counts[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(list.size());
        came.push_back(naive[static_cast<std::size_t>(r)].list(list, step + 1));
        hits += std::ssize(list) - came.back();
      }
      for (float& q : queries) q = random.real();
      device.send();
      gpu::token_lists lists{};
      lists.units = on_device(tokens);
      lists.stride = slots;
      lists.named = on_device(counts);
      lists.tokens.all = shape.max_tokens;
      lists.lists = static_cast<std::int32_t>(shape.kv_heads);
      gpu::detail::decode_attention a{};
      a.queries.base = on_device(queries).data;
      a.queries.elements = std::ssize(queries);
      a.queries.sequence_stride = size;
      a.queries.head_stride = shape.head_dim;
      a.group = 2;
      a.sequences = sequences;
      a.most_tokens = slots;
      a.out = a.queries;
      a.keys = cache.view().keys({0});
      a.values = cache.view().values({0});
      a.lists = lists;
      a.out.base = on_device(by_token).data;
      gpu::detail::launch_attend(device, a);
      resident.gather(cache.view(), {0}, lists, device);
      a.keys = resident.view().keys({0});
      a.values = resident.view().values({0});
      a.out.base = on_device(by_slot).data;
      gpu::detail::launch_attend(device, a);
      device.wait();
      INFO("round " << round << " step " << step);
      REQUIRE(std::ranges::equal(by_slot, by_token));
      REQUIRE(std::ranges::equal(device.read(resident.missed({0}), 0, rows), came));
      REQUIRE(device.read(resident.overflow({0}), 0, 1)[0] == 0);
    }
  }
  REQUIRE(hits > 1000);
}

TEST_CASE("a list with more tokens than slots is counted", "[cuda]") {
  random_source random(92);
  cache_shape const shape{1, 1, 1, 8, 20, element_type::f16};
  batch_cache cache(shape, 1, 16, page_layout::nhd, random, true);
  for (std::int64_t t = 0; t < 20; ++t) cache.write(0, t, random);
  test_device device;
  std::int32_t const slots = 6;
  gpu::resident_rows<test_device> resident(shape, 1, std::span(&slots, 1), device);
  resident.plan(fits{});
  device.send();
  gpu::token_lists all{};
  all.tail.all = 0;
  all.tokens.all = 20;
  resident.gather(cache.view(), {0}, all, device);
  device.wait();
  REQUIRE(device.read(resident.missed({0}), 0, 1)[0] == 6);
  REQUIRE(device.read(resident.overflow({0}), 0, 1)[0] == 1);
}

TEST_CASE("a head with a slot for each token brings what is new, whatever is listed", "[cuda]") {
  random_source random(94);
  cache_shape const shape{1, 2, 2, 8, 40, element_type::f32};
  batch_cache cache(shape, 1, 16, page_layout::nhd, random, true);
  for (std::int64_t t = 0; t < 40; ++t) cache.write(0, t, random);
  test_device device;
  std::array<std::int32_t, 2> const slots{40, 6};
  gpu::resident_rows<test_device> resident(shape, 1, slots, device);
  resident.plan(fits{});
  device.send();
  gpu::token_lists last{};
  for (std::int64_t tokens : {30, 31, 33, 33}) {
    last.tail.all = tokens - 4;
    last.tokens.all = tokens;
    resident.gather(cache.view(), {0}, last, device);
    device.wait();
    auto const came = device.read(resident.missed({0}), 0, 2);
    INFO("tokens " << tokens);
    CHECK(came[0] == (tokens == 30 ? 30 : tokens == 31 ? 1 : came[1]));
  }
  resident.forget(0, device);
  resident.gather(cache.view(), {0}, last, device);
  device.wait();
  CHECK(device.read(resident.missed({0}), 0, 2) == std::vector<std::int32_t>{33, 4});
}

TEST_CASE("rows that are not packed are refused", "[cuda]") {
  random_source random(93);
  cache_shape const shape{1, 1, 1, 8, 20, element_type::f16};
  batch_cache cache(shape, 1, 16, page_layout::nhd, random, true);
  test_device device;
  std::int32_t const slots = 6;
  gpu::resident_rows<test_device> resident(shape, 1, std::span(&slots, 1), device);
  resident.plan(fits{});
  gpu::paged_batch odd = cache.view();
  odd.pool.key_strides.dim *= 2;
  REQUIRE_THROWS_AS(resident.gather(odd, {0}, {}, device), unsupported);
}

}  // namespace
}  // namespace kvpolicy_test
