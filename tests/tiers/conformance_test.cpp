#include "tiers/conformance.hpp"

#include <catch2/catch_template_test_macros.hpp>

#include "tiers/coded_blocks.hpp"

using namespace kvpolicy_test;

TEMPLATE_TEST_CASE("a tier holds what a map does, whatever is put, read, dropped and replaced", "", of_same_memory, of_host,
                   of_any_tier, of_host_q8_0, of_host_q4_0) {
  CHECK(behaves_as_a_map<TestType>(quick_build ? 60 : 10, 5000) > 10'000);
}

TEMPLATE_TEST_CASE("a thousand orders in which gets end, of ten thousand operations", "", of_fake, of_failing_fake,
                   of_fake_q8_0) {
  CHECK(behaves_as_a_map<TestType>(quick_build ? 1000 : 20, 10'000) > 10'000);
}

TEMPLATE_TEST_CASE("no tenant reads another one's block", "", of_same_memory, of_host, of_any_tier, of_fake, of_host_q8_0) {
  // Ten million blocks and more in all; waking a worker takes its time.
  constexpr bool has_worker = std::is_same_v<TestType, of_host> || std::is_same_v<TestType, of_any_tier>;
  keeps_tenants_apart<TestType>(!quick_build ? 100'000 : has_worker ? 1'000'000 : 4'500'000);
}

TEMPLATE_TEST_CASE("a key that differs in one field is a miss", "", of_same_memory, of_host, of_any_tier, of_fake,
                   of_host_q8_0) {
  tells_every_field<TestType>(1000);
}

TEMPLATE_TEST_CASE("what a get reads is not reused before it has ended", "", of_same_memory, of_host, of_any_tier, of_fake,
                   of_host_q8_0) {
  holds_what_is_read<TestType>();
}

TEMPLATE_TEST_CASE("a batch is read or written whole or not at all", "", of_same_memory, of_host, of_any_tier, of_fake,
                   of_host_q8_0) {
  takes_all_or_nothing<TestType>();
}

TEMPLATE_TEST_CASE("a ticket is told once", "", of_same_memory, of_host, of_any_tier, of_fake, of_host_q8_0) {
  tells_every_ticket_once<TestType>();
}

TEST_CASE("a wait on a get that never ends returns at its deadline") {
  fake_tier never(16, 4, {.never = true});
  REQUIRE(put_one(never, {}, 1));
  std::vector<std::byte> to(16, untouched_byte);
  tiers::block_read const read{{}, to.data()};
  tiers::ticket const id = never.get({&read, 1});
  auto const start = tiers::clock::now();
  CHECK(never.wait(id, start + std::chrono::milliseconds(20)) == tiers::status::pending);
  CHECK(tiers::clock::now() - start < std::chrono::seconds(5));
  CHECK(never.poll(id) == tiers::status::pending);
  CHECK(untouched(to));
  CHECK(never.occupied().in_flight == 1);
  never.options().never = false;
  CHECK(never.wait(id, soon()) == tiers::status::done);
}

TEST_CASE("a host tier that is destroyed delivers what it was asked for first") {
  std::vector<std::byte> to(1 << 20, untouched_byte);
  {
    tiers::host made(1 << 20, 1);
    REQUIRE(put_one(made, {}, 1));
    tiers::block_read const read{{}, to.data()};
    made.get({&read, 1});
  }
  CHECK(to == block_of({}, 1, 1 << 20));
}

TEST_CASE("tiers of no size are refused") {
  CHECK_THROWS_AS(tiers::host(0, 4), kvpolicy::invalid_value);
  CHECK_THROWS_AS(tiers::host(4, -1), kvpolicy::invalid_value);
  CHECK_THROWS_AS(tiers::host(INT64_MAX / 2, 4), kvpolicy::invalid_value);
  CHECK_THROWS_AS(same_memory(0, 4), kvpolicy::invalid_value);
  CHECK_THROWS_AS(same_memory(4, -1), kvpolicy::invalid_value);
  tiers::host none(8, 0);
  CHECK_FALSE(put_one(none, {}, 1));
  CHECK(is_miss(none, {}));
  CHECK(adds_up(none));
}
