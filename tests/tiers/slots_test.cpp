#include "kvpolicy/tiers/slots.hpp"

#include <set>

#include "tiers/blocks.hpp"

using namespace kvpolicy_test;
using tiers::slot_table;

TEST_CASE("of very many blocks, each is found in a slot of its own and no other key finds it") {
  constexpr std::int64_t count = 200'000;
  slot_table table(count);
  auto const key_of = [](std::int64_t i) {  // neighbours, as a cache has them
    return tiers::block_key{static_cast<std::uint64_t>(i / 65536), static_cast<std::int32_t>(i / 4096 % 16),
                            static_cast<std::int32_t>(i / 512 % 8), static_cast<std::int32_t>(i % 512), 1};
  };
  for (std::int64_t i = 0; i < count; ++i) {
    table.announce(key_of(i));
    table.publish(key_of(i), table.take());
  }
  CHECK(table.take() == slot_table::none);
  std::set<slot_table::slot> used;
  for (std::int64_t i = 0; i < count; ++i) {
    used.insert(table.find(key_of(i)));
    tiers::block_key other = key_of(i);
    other.generation = 2;
    check(table.find(other) == slot_table::none, "another generation's block was found");
    other = key_of(i);
    other.request += 1000;
    check(table.find(other) == slot_table::none, "another request's block was found");
  }
  CHECK(std::ssize(used) == count);
  CHECK_FALSE(used.contains(slot_table::none));
}

TEST_CASE("keys as a cache has them rarely share a hash") {
  std::set<std::size_t> hashes;
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    hashes.insert(tiers::block_key_hash{}({i % 7, static_cast<std::int32_t>(i / 7 % 5), static_cast<std::int32_t>(i / 35 % 3),
                                           static_cast<std::int32_t>(i / 105), 1}));
  }
  CHECK(hashes.size() > 199'990);
}

TEST_CASE("keys that share a hash are told apart") {
  // The hash of a request is one step; layer and head, 64 bits that come behind it, can undo what another request changed.
  auto const step = [](std::uint64_t request) {
    std::uint64_t const hash = request * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
  };
  auto const colliding = [&](std::uint64_t request) {
    std::uint64_t const word = step(request) ^ step(0);
    return tiers::block_key{request, static_cast<std::int32_t>(word >> 32), static_cast<std::int32_t>(word), 7, 1};
  };
  tiers::block_key_hash const hash;
  tiers::host made(32, 500);
  for (std::uint64_t request = 0; request < 500; ++request) {
    REQUIRE(hash(colliding(request)) == hash(colliding(0)));
    REQUIRE(put_one(made, colliding(request), 3));
  }
  for (std::uint64_t request = 0; request < 500; ++request) CHECK(reads_as(made, colliding(request), 3));
  for (std::uint64_t request = 500; request < 1000; ++request) CHECK(is_miss(made, colliding(request)));
  for (std::uint64_t request = 0; request < 500; request += 2) drop_one(made, colliding(request));
  for (std::uint64_t request = 0; request < 500; ++request) {
    if (request % 2 == 0) CHECK(is_miss(made, colliding(request)));
    else CHECK(reads_as(made, colliding(request), 3));
  }
}

TEST_CASE("what is announced and withdrawn leaves no trace, and what was there stays") {
  slot_table table(2);
  table.announce({1});
  table.publish({1}, table.take());
  table.announce({1});
  table.announce({2});
  table.announce({2});
  CHECK(table.find({2}) == slot_table::none);
  table.withdraw({1});
  table.withdraw({2});
  table.withdraw({2});
  CHECK(table.find({1}) != slot_table::none);
  CHECK(table.find({2}) == slot_table::none);
  table.drop({2});
  CHECK(table.occupied().free == 1);
}

TEST_CASE("a slot that is held twice and replaced twice is free once, when the last hold ends") {
  slot_table table(3);
  table.announce({1});
  auto const first = table.take();
  table.publish({1}, first);
  table.hold(first);
  table.hold(first);
  for (int i = 0; i < 2; ++i) {
    table.announce({1});
    table.publish({1}, table.take());
  }
  CHECK(table.occupied().in_flight == 1);
  CHECK(table.occupied().free == 1);
  table.release(first);
  CHECK(table.occupied().free == 1);
  table.release(first);
  CHECK(table.occupied().free == 2);
  CHECK(table.occupied().in_flight == 0);
  CHECK(table.occupied().resident == 1);
}
