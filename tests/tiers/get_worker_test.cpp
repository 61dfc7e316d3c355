#include "kvpolicy/tiers/get_worker.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <mutex>
#include <vector>

using namespace kvpolicy;

namespace {

auto soon() { return tiers::clock::now() + std::chrono::seconds(30); }

}  // namespace

TEST_CASE("gets end in the order in which they began, and each is told once") {
  std::vector<int> copied;
  std::vector<int> settled;
  tiers::get_worker<int> worker(
      [&](int const& job) {
        copied.push_back(job);
        return job % 2 == 0 ? tiers::status::done : tiers::status::missed;
      },
      [&](int const& job) { settled.push_back(job); });
  std::vector<tiers::ticket> tickets;
  for (int i = 0; i < 20; ++i) {
    std::scoped_lock const lock(worker.mutex());
    tickets.push_back(worker.begin(i, [](int const&) {}));
  }
  for (int i = 0; i < 20; ++i) {
    CHECK(worker.wait(tickets[static_cast<std::size_t>(i)], soon()) ==
          (i % 2 == 0 ? tiers::status::done : tiers::status::missed));
    CHECK_THROWS_AS(worker.poll(tickets[static_cast<std::size_t>(i)]), invalid_value);
  }
  CHECK(std::ranges::is_sorted(copied));
  CHECK(copied == settled);
}

TEST_CASE("a get that has ended before it began is a miss") {
  tiers::get_worker<int> worker([](int const&) { return tiers::status::done; }, [](int const&) {});
  tiers::ticket missed = 0;
  {
    std::scoped_lock const lock(worker.mutex());
    missed = worker.ended(tiers::status::missed);
  }
  CHECK(worker.poll(missed) == tiers::status::missed);
  CHECK_THROWS_AS(worker.poll(missed + 1), invalid_value);
}

TEST_CASE("what has begun is ended before the worker goes") {
  int copied = 0;
  {
    tiers::get_worker<int> worker(
        [&](int const&) {
          ++copied;
          return tiers::status::done;
        },
        [](int const&) {});
    std::scoped_lock const lock(worker.mutex());
    for (int i = 0; i < 50; ++i) worker.begin(i, [](int const&) {});
  }
  CHECK(copied == 50);
}
