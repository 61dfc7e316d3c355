// That the fixture's cluster does what it says: seen by plain commands.

#include "redis/cluster.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "redis/needs_server.hpp"
#include "redis/within.hpp"

using namespace kvpolicy_test::redis;
using namespace std::chrono_literals;
using Catch::Matchers::StartsWith;

TEST_CASE("a cluster sends a client on, for good after a slot has moved and once while it moves") {
  needs_server();
  cluster c({.password = "open sesame"});
  std::string const moving[2] = {std::string("{a}\n\0001", 6), "{a}2"};
  int const slot = c.slot_of("a");
  int const from = c.primary_of(slot);
  int const to = (from + 1) % cluster::shards;
  int const third = (from + 2) % cluster::shards;
  auto const at = [&](int i) { return std::to_string(slot) + " 127.0.0.1:" + std::to_string(c.node(i).port()); };
  for (auto const& key : moving) CHECK(c.node(from).command("SET", key, "1") == "OK");
  CHECK(c.node(to).command("GET", "{a}2") == "-MOVED " + at(from));
  CHECK(c.primary_of("{a}3") == from);

  c.open_slot(slot, to);
  CHECK(c.carry_keys(slot, to, 1) == 1);
  CHECK(c.node(from).command("DBSIZE") == "1");
  CHECK(c.node(from).command("GET", "{a}3") == "-ASK " + at(to));
  CHECK(c.node(from).command("SET", "{a}3", "1") == "-ASK " + at(to));
  CHECK_THAT(c.node(from).command("MGET", moving[0], moving[1]), StartsWith("-TRYAGAIN"));
  CHECK(c.node(to).command("GET", "{a}3") == "-MOVED " + at(from));
  auto asked = c.node(to).connect();
  CHECK(asked.command("ASKING") == "OK");
  CHECK(asked.command("SET", "{a}3", "3") == "OK");
  CHECK(c.primary_of(slot) == from);

  CHECK(c.carry_keys(slot, to, 9) == 1);
  c.settle_slot(slot, to);
  for (int const i : {from, third}) CHECK(c.node(i).command("GET", "{a}3") == "-MOVED " + at(to));
  CHECK(c.node(to).command("GET", "{a}3") == "3");
  for (auto const& key : moving) CHECK(c.node(to).command("GET", key) == "1");

  c.move_slot(slot, third);
  CHECK(c.primary_of(slot) == third);
  CHECK(c.node(third).command("GET", moving[0]) == "1");
  c.node(third).kill();
  CHECK(within(10s, [&] { return c.node(from).command("GET", "b").starts_with("-CLUSTERDOWN"); }));
}

TEST_CASE("a replica takes over from a primary that is killed, and from one that is paused") {
  needs_server();
  cluster c({.replicas = true, .node_timeout = 700ms});
  int const slot = c.slot_of("a");
  int const first = c.primary_of(slot);
  int const second = cluster::partner_of(first);
  connection writer = c.node(first).connect();  // it waits for what came by it
  CHECK(writer.command("SET", "a", "1") == "OK");
  CHECK(writer.command("WAIT", "1", "5000") == "1");
  CHECK_THAT(c.node(second).command("SET", "a", "2"), StartsWith("-MOVED"));

  c.node(first).kill();
  CHECK(c.wait_for_failover(first));
  CHECK(c.primary_of(slot) == second);
  CHECK(c.node(second).command("GET", "a") == "1");
  c.node(first).restart();
  CHECK(within(
      10s, [&] { return c.node(first).command("INFO", "replication").find("master_link_status:up") != std::string::npos; }));

  c.node(second).pause();
  CHECK(c.wait_for_failover(second));
  CHECK(c.primary_of(slot) == first);
  CHECK(c.node(first).command("GET", "a") == "1");
  c.node(second).resume();
  CHECK(within(10s, [&] { return c.node(second).command("SET", "a", "2").starts_with("-MOVED"); }));
}
