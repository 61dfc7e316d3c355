#include "kvpolicy/tier/row_arena.hpp"

#include <catch2/catch_test_macros.hpp>

#include "kvpolicy/tier/head_slots.hpp"
#include "tier/blocks.hpp"

using namespace kvpolicy_test;

TEST_CASE("slots are given out in turn, then that which was read longest ago") {
  tier::head_slots slots(2);
  CHECK(slots.take(10, 1).slot == 0);
  CHECK(slots.take(11, 2).slot == 1);
  tier::head_slots::taken const third = slots.take(12, 3);
  CHECK((third.slot == 0 && third.evicted == 10));
  slots.touch(1, 4);
  CHECK(slots.take(13, 4).evicted == 12);
  CHECK_THROWS_AS(slots.take(14, 4), kvpolicy::invalid_value);  // both are read now
  slots.hold(0);
  slots.touch(1, 4);
  CHECK(slots.take(15, 9).slot == 1);
  CHECK_THROWS_AS(slots.take(16, 9), kvpolicy::invalid_value);  // one is held, the other is read now
  slots.empty(0);
  tier::head_slots::taken const freed = slots.take(17, 9);
  CHECK((freed.slot == 0 && freed.evicted == tier::head_slots::nowhere));
  slots.clear();
  CHECK(slots.take(18, 1).evicted == tier::head_slots::nowhere);
}

TEST_CASE("each layer and head has rows of its own, and a token that gave way has none") {
  cache_shape const shape{.layers = 2, .q_heads = 2, .kv_heads = 2, .head_dim = 1, .max_tokens = 8, .type = element_type::f32};
  tier::row_arena arena(shape, 2);
  for (layer_id layer{0}; layer.value < 2; ++layer.value) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int32_t t : {3, 5, 7}) {  // 7 takes the place of 3
        std::int32_t const slot = arena.take(layer, h, t, t);
        auto const key = static_cast<float>(100 * layer.value + 10 * h + t);
        float const value = -key;
        arena.write(layer, h, slot, reinterpret_cast<std::byte const*>(&key), reinterpret_cast<std::byte const*>(&value));
        arena.slot_of(layer, h, t) = slot;
        CHECK(arena.slot_at(layer, h, arena.address(layer, h, slot)) == slot);
      }
    }
  }
  for (layer_id layer{0}; layer.value < 2; ++layer.value) {
    for (std::int64_t h = 0; h < 2; ++h) {
      CHECK(arena.slot_of(layer, h, 3) == tier::row_arena::nowhere);
      for (std::int32_t t : {5, 7}) {
        std::vector<float> row(1);
        arena.keys(layer).load({h}, {t}, row);
        CHECK(row[0] == static_cast<float>(100 * layer.value + 10 * h + t));
        arena.values(layer).load({h}, {t}, row);
        CHECK(row[0] == -static_cast<float>(100 * layer.value + 10 * h + t));
      }
    }
  }
  arena.clear();
  CHECK(arena.slot_of({1}, 1, 7) == tier::row_arena::nowhere);
}
