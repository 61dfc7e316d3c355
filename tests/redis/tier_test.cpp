// The remote tier on real servers: what every tier promises, and what it makes of servers that fail.
#include "kvpolicy/tiers/redis.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "conformance/random_cache.hpp"
#include "redis/cluster.hpp"
#include "redis/needs_server.hpp"
#include "redis/slow_proxy.hpp"
#include "tiers/conformance.hpp"

using namespace kvpolicy_test;
using namespace kvpolicy_test::redis;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

std::string at(int port) { return "127.0.0.1:" + std::to_string(port); }

/// Started once, and shared: a cluster takes two seconds.
server& one_server() {
  static server made({.password = "open sesame"});
  return made;
}
cluster& three_nodes() {
  static cluster made({.password = "open sesame"});
  return made;
}

struct of_redis {
  static constexpr bool may_fail = false;
  tiers::redis tier;
  of_redis(std::int64_t bytes, std::int64_t capacity, std::uint64_t)
      : tier({.nodes = {at(one_server().port())}, .password = "open sesame"}, bytes, capacity) {}
};
struct of_cluster {
  static constexpr bool may_fail = false;
  tiers::redis tier;
  of_cluster(std::int64_t bytes, std::int64_t capacity, std::uint64_t)
      : tier({.nodes = {at(three_nodes().node(0).port())}, .password = "open sesame"}, bytes, capacity) {}
};

tiers::redis_options impatient(std::vector<std::string> nodes) {
  return {.nodes = std::move(nodes), .password = "open sesame", .deadline = 3000ms, .attempt = 500ms};
}

/// Blocks of 64 requests, over all nodes.
template <class Tier>
void put_many(Tier& t, std::uint64_t version = 1) {
  for (std::uint64_t r = 0; r < 64; ++r) REQUIRE(put_one(t, {r, 0, 0, 0, 1}, version));
}
/// How many of them are read whole; the others must be misses.
template <class Tier>
int readable(Tier& t, std::uint64_t version = 1) {
  int count = 0;
  for (std::uint64_t r = 0; r < 64; ++r) {
    std::vector<std::byte> to(static_cast<std::size_t>(t.block_bytes()), untouched_byte);
    tiers::block_key const key{r, 0, 0, 0, 1};
    tiers::block_read const read{key, to.data()};
    if (t.wait(t.get({&read, 1}), soon()) == tiers::status::done) {
      CHECK(to == block_of(key, version, t.block_bytes()));
      ++count;
    } else {
      CHECK(untouched(to));
    }
  }
  return count;
}

}  // namespace

TEMPLATE_TEST_CASE("a remote tier holds what a map does, whatever is put, read, dropped and replaced", "", of_redis,
                   of_cluster) {
  needs_server();
  CHECK(behaves_as_a_map<TestType>(quick_build ? 6 : 2, quick_build ? 2000 : 500) > 500);
}
TEMPLATE_TEST_CASE("no tenant of a remote tier reads another one's block", "", of_redis, of_cluster) {
  needs_server();
  keeps_tenants_apart<TestType>(quick_build ? 100'000 : 5'000);
}
TEMPLATE_TEST_CASE("a remote key that differs in one field is a miss", "", of_redis, of_cluster) {
  needs_server();
  tells_every_field<TestType>(quick_build ? 300 : 30);
}
TEMPLATE_TEST_CASE("what a remote get reads is not reused before it has ended", "", of_redis, of_cluster) {
  needs_server();
  holds_what_is_read<TestType>();
}
TEMPLATE_TEST_CASE("a remote batch is read or written whole or not at all", "", of_redis, of_cluster) {
  needs_server();
  takes_all_or_nothing<TestType>();
}
TEMPLATE_TEST_CASE("a remote ticket is told once", "", of_redis, of_cluster) {
  needs_server();
  tells_every_ticket_once<TestType>();
}

TEST_CASE("a remote tier leaves nothing behind on its servers") {
  needs_server();
  server s;
  {
    tiers::redis t({.nodes = {at(s.port())}}, 100, 1000);
    for (std::uint64_t version = 1; version < 4; ++version) put_many(t, version);
    CHECK(s.command("DBSIZE") == "64");
    drop_one(t, {3, 0, 0, 0, 1});
    CHECK(s.command("DBSIZE") == "63");
    CHECK(std::stoi(s.command("TTL", s.command("RANDOMKEY"))) > 80'000);
  }
  CHECK(s.command("DBSIZE") == "0");
}

TEST_CASE("servers that can't be had, and options that can't be, are refused with their names") {
  needs_server();
  CHECK_THROWS_WITH(tiers::redis(impatient({"127.0.0.1:1"}), 8, 8), ContainsSubstring("127.0.0.1:1"));
  CHECK_THROWS_WITH(tiers::redis(impatient({"no.such.host.invalid:6379"}), 8, 8), ContainsSubstring("no.such.host.invalid"));
  tiers::redis_options wrong{.nodes = {at(one_server().port())}, .password = "sesame open"};
  CHECK_THROWS_WITH(tiers::redis(wrong, 8, 8), ContainsSubstring("WRONGPASS"));
  wrong.password.clear();
  CHECK_THROWS_WITH(tiers::redis(wrong, 8, 8), ContainsSubstring("NOAUTH"));
  for (tiers::redis_options const& bad :
       {tiers::redis_options{.nodes = {}}, tiers::redis_options{.space = "a{b"}, tiers::redis_options{.deadline = 0ms},
        tiers::redis_options{.lifetime = -1s}, tiers::redis_options{.replicas = -1}}) {
    CHECK_THROWS_AS(tiers::redis(bad, 8, 8), kvpolicy::invalid_value);
  }
  CHECK_THROWS_AS(tiers::redis(impatient({at(one_server().port())}), 0, 8), kvpolicy::invalid_value);
}

TEST_CASE("a full server refuses a put, and keeps what it has") {
  needs_server();
  server s({.maxmemory = 4 << 20});
  tiers::redis t({.nodes = {at(s.port())}}, 1 << 16, 1000);
  std::vector<std::byte> bytes(1 << 16);
  std::int32_t stored = 0;
  for (; stored < 200; ++stored) {
    tiers::block_key const key{1, 0, 0, stored, 1};
    fill_block(key, 1, bytes);
    tiers::block_write const write{key, bytes.data()};
    if (!t.put({&write, 1})) break;
  }
  REQUIRE(stored > 10);
  REQUIRE(stored < 200);
  // A batch that does not fit, over blocks that are there: whole or not at all.
  std::vector<tiers::block_write> writes;
  for (std::int32_t i = 0; i < 60; ++i) writes.push_back({{1, 0, 0, i, 1}, bytes.data()});
  CHECK_FALSE(t.put(writes));
  CHECK(t.occupied().resident == stored);
  for (std::int32_t i = 0; i < stored; ++i) CHECK(reads_as(t, {1, 0, 0, i, 1}, 1));
  for (std::int32_t i = 0; i < stored / 2; ++i) drop_one(t, {1, 0, 0, i, 1});
  CHECK(put_one(t, {1, 0, 0, 0, 1}, 2));
  CHECK(reads_as(t, {1, 0, 0, 0, 1}, 2));
}

TEST_CASE("a replica takes over from a primary that was killed, and from one that is paused") {
  needs_server();
  for (bool const killed : {true, false}) {
    CAPTURE(killed);
    cluster c({.replicas = true, .password = "open sesame", .node_timeout = 500ms});
    tiers::redis_options options = impatient({at(c.node(0).port()), at(c.node(1).port())});
    options.replicas = 1;
    options.deadline = 15'000ms;  // a failover, and a busy machine
    tiers::redis t(options, 500, 1000);
    put_many(t);
    killed ? c.node(0).kill() : c.node(0).pause();
    CHECK(readable(t) == 64);  // from the replica, which has what was acknowledged
    REQUIRE(c.wait_for_failover(0));
    t.drop(std::array{tiers::block_key{5, 0, 0, 0, 1}});
    CHECK(readable(t) == 63);
    // One copy is lost with the node: acknowledged again by who is left, where a copy is not asked for.
    tiers::redis others(impatient({at(c.node(1).port())}), 500, 1000);
    put_many(others);
    CHECK(readable(others) == 64);
  }
}

TEST_CASE("without a replica, a paused node's blocks are misses in time, and others' are there") {
  needs_server();
  cluster c({.password = "open sesame", .node_timeout = 15'000ms});
  tiers::redis t(impatient({at(c.node(0).port())}), 500, 1000);
  put_many(t);
  c.node(2).pause();
  std::vector<std::byte> to(64 * 500, untouched_byte);
  std::vector<tiers::ticket> ids;
  int there = 0;
  auto const start = tiers::clock::now();
  for (std::uint64_t r = 0; r < 6; ++r) {
    tiers::block_read const read{{r, 0, 0, 0, 1}, to.data() + r * 500};
    there += t.wait(t.get({&read, 1}), soon()) == tiers::status::done ? 1 : 0;
    put_one(t, {r, 1, 0, 0, 1}, 1);
  }
  CHECK(tiers::clock::now() - start < 90s);
  CHECK(there < 6);
  CHECK(adds_up(t));
  c.node(2).resume();
  int back = 0;  // a node that was away serves again when it has heard the others
  for (int tries = 0; tries < 10 && back < 64; ++tries) back = readable(t);
  CHECK(back == 64);
}

TEST_CASE("slots that move, for good and half, are followed") {
  needs_server();
  cluster c({.password = "open sesame"});
  tiers::redis_options options = impatient({at(c.node(0).port())});
  options.space = "movers";
  tiers::redis t(options, 500, 1000);
  put_many(t);
  int moved = 0;
  for (std::uint64_t r = 0; r < 64 && moved < 6; ++r) {
    int const slot = c.slot_of("movers:" + std::to_string(r) + ":0");
    int const to = (c.primary_of(slot) + 1) % cluster::shards;
    if (moved++ < 3) {
      c.move_slot(slot, to);
      continue;
    }
    c.open_slot(slot, to);
    REQUIRE(put_one(t, {r, 0, 1, 0, 1}, 1));  // new there, by ASK
    REQUIRE(reads_as(t, {r, 0, 1, 0, 1}, 1));
    c.carry_keys(slot, to, 1);
    REQUIRE(reads_as(t, {r, 0, 0, 0, 1}, 1));
  }
  CHECK(readable(t) == 64);
}

TEST_CASE("a reply that is torn or turned is a miss, never other bytes") {
  needs_server();
  server s;
  slow_proxy proxy(s.port());
  tiers::redis t({.nodes = {at(proxy.port())}, .deadline = 2000ms, .attempt = 400ms}, 4000, 100);
  REQUIRE(put_one(t, {}, 1));
  int missed = 0;
  for (std::int64_t after : {0, 1, 5, 7, 20, 40, 55, 60, 100, 2000, 4040, 4055}) {
    CAPTURE(after);
    proxy.flip_after(after);
    std::vector<std::byte> to(4000, untouched_byte);
    tiers::block_read const read{{}, to.data()};
    bool const done = t.wait(t.get({&read, 1}), soon()) == tiers::status::done;
    missed += done ? 0 : 1;
    CHECK((done ? to == block_of({}, 1, 4000) : untouched(to)));
    proxy.heal();
    proxy.cut_after(after);
    CHECK(reads_as(t, {}, 1));  // asked again
    proxy.heal();
  }
  CHECK(missed >= 4);
}

TEST_CASE("a server that stalls, or trickles, costs a deadline and no more") {
  needs_server();
  server s;
  slow_proxy proxy(s.port());
  tiers::redis t({.nodes = {at(proxy.port())}, .deadline = 1500ms, .attempt = 400ms}, 4000, 100);
  REQUIRE(put_one(t, {}, 1));
  proxy.stall();
  auto const start = tiers::clock::now();
  CHECK(is_miss(t, {}));
  CHECK_FALSE(put_one(t, {}, 2));
  drop_one(t, {9, 9, 9, 9, 9});
  CHECK(tiers::clock::now() - start < 20s);
  proxy.heal();
  CHECK(reads_as(t, {}, 1));
  CHECK(put_one(t, {}, 3));
  CHECK(reads_as(t, {}, 3));
  CHECK(s.command("DBSIZE") == "1");  // what the put left that was given up is gone
}

TEST_CASE("two processes share a space: what one wrote the other reads, and in another space nobody does") {
  needs_server();
  tiers::redis_options options{.nodes = {at(three_nodes().node(1).port())}, .password = "open sesame", .space = "prompt-5f3a"};
  pid_t const child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    bool stored = true;
    try {
      tiers::redis writer(options, 500, 1000);
      for (std::uint64_t r = 0; r < 64; ++r) stored = stored && put_one(writer, {r, 0, 0, 0, 1}, 1);
    } catch (...) {
      stored = false;
    }
    _exit(stored ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  tiers::redis reader(options, 500, 1000);
  CHECK(readable(reader) == 64);
  options.space = "prompt-5f3b";
  tiers::redis stranger(options, 500, 1000);
  CHECK(readable(stranger) == 0);
  options.space.clear();
  tiers::redis alone(options, 500, 1000);
  CHECK(readable(alone) == 0);
}
