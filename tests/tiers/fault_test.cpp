// What a tier holds after an allocation failed: in a program of its own, because it replaces operator new.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tiers/blocks.hpp"

namespace {

std::atomic<std::int64_t> left{INT64_MAX};  ///< allocations until one fails

void* limited(std::size_t size) {
  if (left.fetch_sub(1, std::memory_order_relaxed) == 1) throw std::bad_alloc();
  void* const made = std::malloc(size == 0 ? 1 : size);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

}  // namespace

void* operator new(std::size_t size) { return limited(size); }
void* operator new[](std::size_t size) { return limited(size); }
void operator delete(void* made) noexcept { std::free(made); }
void operator delete[](void* made) noexcept { std::free(made); }
void operator delete(void* made, std::size_t) noexcept { std::free(made); }
void operator delete[](void* made, std::size_t) noexcept { std::free(made); }

using namespace kvpolicy_test;

namespace {

constexpr std::int64_t bytes = 64;
constexpr std::int32_t blocks = 12;
constexpr std::int32_t replaced = 5;  ///< of a batch of 10; the others are new

tiers::block_key key_of(std::int32_t i) { return {7, i % 3, i % 2, i, 1}; }

/// Runs with the nth allocation failing; true where the run came through without.
template <class Run>
bool failed_at(std::int64_t nth, Run run) {
  left = nth;
  try {
    run();
  } catch (std::bad_alloc const&) {
  }
  return left.exchange(INT64_MAX) <= 0;
}

template <class Tier>
bool holds(Tier& t, std::uint64_t version, bool with_new) {
  bool right = t.occupied().resident == (with_new ? replaced + 5 : replaced);
  for (std::int32_t i = 0; i < 10; ++i) {
    bool const there = i < replaced || with_new;
    right = right && (there ? reads_as(t, key_of(i), version) : is_miss(t, key_of(i)));
  }
  return right;
}

template <class Made>
void survives_faults_of_put() {
  std::int64_t failures = 0;
  bool failed = true;
  for (std::int64_t nth = 1; failed; ++nth) {
    REQUIRE(nth < 1000);
    Made made(bytes, 2 * blocks, 1);
    for (std::int32_t i = 0; i < replaced; ++i) REQUIRE(put_one(made.tier, key_of(i), 1));
    std::vector<std::vector<std::byte>> sources;
    std::vector<tiers::block_write> writes;
    for (std::int32_t i = 0; i < 10; ++i) sources.push_back(block_of(key_of(9 - i), 2, bytes));
    for (std::int32_t i = 0; i < 10; ++i) writes.push_back({key_of(9 - i), sources[static_cast<std::size_t>(i)].data()});
    bool accepted = false;
    failed = failed_at(nth, [&] { accepted = made.tier.put(writes); });
    failures += failed ? 1 : 0;
    CAPTURE(nth, failed, accepted);
    CHECK(adds_up(made.tier));
    CHECK((failed || accepted));
    CHECK(holds(made.tier, accepted ? 2 : 1, accepted));
    CHECK(made.tier.put(writes));
    CHECK(holds(made.tier, 2, true));
    CHECK(adds_up(made.tier));
  }
  CHECK(failures > 0);
}

template <class Made>
void survives_faults_of_get() {
  std::int64_t failures = 0;
  for (bool const complete : {true, false}) {
    bool failed = true;
    for (std::int64_t nth = 1; failed; ++nth) {
      REQUIRE(nth < 1000);
      Made made(bytes, blocks, 1);
      for (std::int32_t i = 0; i < replaced; ++i) REQUIRE(put_one(made.tier, key_of(i), 1));
      std::vector<std::byte> to(replaced * bytes, untouched_byte);
      std::vector<tiers::block_read> reads;
      for (std::int32_t i = 0; i < replaced; ++i) {
        reads.push_back({key_of(!complete && i == 3 ? 11 : i), to.data() + std::int64_t{i} * bytes});
      }
      tiers::ticket id = 0;
      failed = failed_at(nth, [&] { id = made.tier.get(reads); });
      failures += failed ? 1 : 0;
      CAPTURE(complete, nth, failed, id);
      CHECK((failed || id != 0));
      if (id == 0) {
        CHECK(made.tier.occupied().in_flight == 0);
        CHECK(untouched(to));
      } else {
        tiers::status const result = made.tier.wait(id, soon());
        CHECK((result == tiers::status::done) == (complete && !untouched(to)));
        CHECK((result == tiers::status::missed) == untouched(to));
      }
      CHECK(adds_up(made.tier));
      CHECK(made.tier.occupied().in_flight == 0);
      for (std::int32_t i = 0; i < replaced; ++i) CHECK(reads_as(made.tier, key_of(i), 1));
    }
  }
  CHECK(failures > 0);
}

}  // namespace

TEST_CASE("ordinary memory holds all of a put or nothing, whichever allocation fails") {
  survives_faults_of_put<of_same_memory>();
}
TEST_CASE("ordinary memory loses nothing to a get whose allocation fails") { survives_faults_of_get<of_same_memory>(); }
TEST_CASE("a host arena holds all of a put or nothing, whichever allocation fails") { survives_faults_of_put<of_host>(); }
TEST_CASE("a host arena loses nothing to a get whose allocation fails") { survives_faults_of_get<of_host>(); }
#ifdef KVPOLICY_TEST_DISK
TEST_CASE("a disk loses nothing to a get whose allocation fails") { survives_faults_of_get<of_disk>(); }
#endif
