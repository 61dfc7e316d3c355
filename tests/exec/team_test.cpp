#include "kvpolicy/exec/team.hpp"

#include <dlfcn.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

namespace kvpolicy_test {
namespace {

using kvpolicy::team;

/// A session: `threads - 1` real followers, joined at the end whatever the leader's work does.
template <class Work>
void session(team& threads, Work work) {
  struct joined {
    std::vector<std::thread> followers;
    ~joined() {
      for (std::thread& thread : followers) thread.join();
    }
  } crew;
  for (int i = 1; i < threads.size(); ++i) crew.followers.emplace_back([&threads] { threads.follow(); });
  threads.lead(work);
}

TEST_CASE("every body runs exactly once, and its writes are seen after the loop", "[team]") {
  for (int const size : {1, 2, 3, 4}) {
    team threads(size);
    for (int repeat = 0; repeat < 12; ++repeat) {
      std::vector<int> runs(1000, 0);  // plain memory: TSan sees a body that runs twice or a write that is not published
      std::int64_t sum = 0;
      int loops = 0;
      session(threads, [&] {
        for (std::int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
          threads.for_each(count, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
          ++loops;
          for (std::int64_t i = 0; i < count; ++i) sum += runs[static_cast<std::size_t>(i)];
        }
      });
      INFO("threads " << size << " session " << repeat);
      REQUIRE(loops == 7);
      REQUIRE(runs[0] == 6);
      REQUIRE(runs[1] == 5);
      REQUIRE(runs[63] == 2);
      REQUIRE(runs[999] == 1);
      std::int64_t want = 0;  // by definition, loop by loop
      std::vector<int> again(1000, 0);
      for (std::size_t count : {0u, 1u, 2u, 3u, 7u, 64u, 1000u}) {
        for (std::size_t i = 0; i < count; ++i) want += ++again[i];
      }
      REQUIRE(sum == want);
    }
  }
}

TEST_CASE("loops of few bodies, back to back, lose none", "[team]") {
  team threads(3);
  std::vector<std::int64_t> sums(3, 0);
  session(threads, [&] {
    for (int loop = 0; loop < 3000; ++loop) {
      threads.for_each(3, [&](std::int64_t i) { sums[static_cast<std::size_t>(i)] += i + 1; });
    }
  });
  REQUIRE(sums == std::vector<std::int64_t>{3000, 6000, 9000});
}

TEST_CASE("an exception of the leader's work releases the followers, and the team serves again", "[team]") {
  for (int const size : {1, 2, 4}) {
    team threads(size);
    for (int repeat = 0; repeat < 10; ++repeat) {
      std::vector<int> runs(50, 0);
      REQUIRE_THROWS_AS(session(threads,
                                [&] {
                                  if (repeat % 2 == 0)
                                    threads.for_each(50, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
                                  throw std::runtime_error("in the leader's work");
                                }),
                        std::runtime_error);
      REQUIRE(runs == std::vector<int>(50, repeat % 2 == 0 ? 1 : 0));
    }
    std::int64_t sum = 0;
    session(threads, [&] {
      std::vector<std::int64_t> squares(40);
      threads.for_each(40, [&](std::int64_t i) { squares[static_cast<std::size_t>(i)] = i * i; });
      for (std::int64_t const s : squares) sum += s;
    });
    REQUIRE(sum == 20540);
  }
}

TEST_CASE("the same followers serve session after session", "[team]") {
  team threads(3);
  constexpr int sessions = 200;
  std::vector<std::thread> crew;
  for (int i = 0; i < 2; ++i) {
    crew.emplace_back([&threads] {
      for (int s = 0; s < sessions; ++s) threads.follow();
    });
  }
  std::vector<int> runs(10, 0);
  for (int s = 0; s < sessions; ++s) {
    threads.lead([&] {
      for (int loop = 0; loop < s % 4; ++loop)
        threads.for_each(10, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
    });
  }
  for (std::thread& thread : crew) thread.join();
  REQUIRE(runs == std::vector<int>(10, sessions / 4 * (0 + 1 + 2 + 3)));
}

TEST_CASE("a loop outside lead() is refused: nobody follows, and it would never end", "[team]") {
  team threads(3);
  CHECK_THROWS_AS(threads.for_each(20, [](std::int64_t) {}), kvpolicy::invalid_value);
  session(threads, [&] { threads.for_each(20, [](std::int64_t) {}); });
  CHECK_THROWS_AS(threads.for_each(20, [](std::int64_t) {}), kvpolicy::invalid_value);
}

TEST_CASE("a follower too many returns at once, and the next lead() says so", "[team]") {
  team threads(2);
  std::atomic<int> returned{0};
  std::vector<std::thread> crew;
  for (int i = 0; i < 2; ++i) crew.emplace_back([&] { threads.follow(), ++returned; });
  while (returned == 0) std::this_thread::yield();
  REQUIRE_THROWS_AS(threads.lead([] {}), kvpolicy::invalid_value);
  for (std::thread& thread : crew) thread.join();
  REQUIRE(returned == 2);
}

TEST_CASE("alone, the leader runs every body itself, also after an exception", "[team]") {
  team threads(4);  // nobody follows: a loop that waited for followers would never end
  std::vector<int> runs(20, 0);
  auto const self = std::this_thread::get_id();
  bool elsewhere = false;
  auto const body = [&](std::int64_t i) {
    elsewhere |= std::this_thread::get_id() != self;
    ++runs[static_cast<std::size_t>(i)];
  };
  threads.lead_alone([&] { threads.for_each(20, body); });
  REQUIRE_THROWS_AS(threads.lead_alone([&] {
    threads.for_each(20, body);
    throw std::runtime_error("alone");
  }),
                    std::runtime_error);
  REQUIRE(runs == std::vector<int>(20, 2));
  REQUIRE_FALSE(elsewhere);
  session(threads, [&] { threads.for_each(20, [&](std::int64_t i) { runs[static_cast<std::size_t>(i)] = 9; }); });
  REQUIRE(runs == std::vector<int>(20, 9));
}

// libstdc++ keeps the sleepers of std::atomic's wait() in a table of each shared object: there the follower slept for ever.
TEST_CASE("followers that sleep are woken by a loop of a plugin's code", "[team]") {
  void* const plugin = dlopen(KVPOLICY_TEAM_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(plugin != nullptr);
  auto const count_in_plugin = reinterpret_cast<void (*)(team&, std::int64_t*, std::int64_t)>(dlsym(plugin, "count_in_plugin"));
  REQUIRE(count_in_plugin != nullptr);
  std::vector<std::int64_t> runs(20, 0);
  std::atomic<bool> ended{false};
  std::thread all([&] {
    team threads(2);
    session(threads, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      count_in_plugin(threads, runs.data(), 20);
    });
    ended = true;
  });
  for (int i = 0; i < 3000 && !ended; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (!ended) {
    std::fputs("a follower was not woken\n", stderr);
    std::abort();  // the threads can't be ended
  }
  all.join();
  REQUIRE(runs == std::vector<std::int64_t>(20, 1));
  dlclose(plugin);
}

TEST_CASE("a team has at least one thread", "[team]") {
  REQUIRE(team(1).size() == 1);
  REQUIRE_THROWS_AS(team(0), kvpolicy::invalid_value);
  REQUIRE_THROWS_AS(team(-3), kvpolicy::invalid_value);
}

TEST_CASE("a team of one has no followers, and leads once at a time", "[team]") {
  team one(1);
  one.follow();  // returns
  REQUIRE_THROWS_AS(one.lead([&] { one.lead([] {}); }), kvpolicy::invalid_value);
  REQUIRE_NOTHROW(one.lead([] {}));
}

}  // namespace
}  // namespace kvpolicy_test
