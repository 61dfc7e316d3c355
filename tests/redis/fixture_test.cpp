// That the fixture does what it says: seen by plain commands, on real servers.

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>

#include "redis/needs_server.hpp"
#include "redis/server.hpp"
#include "redis/shell.hpp"
#include "redis/slow_proxy.hpp"
#include "redis/within.hpp"

using namespace kvpolicy_test::redis;
using namespace std::chrono_literals;
using Catch::Matchers::StartsWith;
using cause = no_answer::cause;

TEST_CASE("a server keeps what it is given until it is started again, and its files until it ends") {
  needs_server();
  std::string folder;
  {
    server s;
    folder = s.folder();
    CHECK(s.command("SET", "a", std::string("1\r\n\0002", 5)) == "OK");
    CHECK(s.command("GET", "a") == std::string("1\r\n\0002", 5));
    CHECK(s.command("GET", "b") == "(nil)");
    CHECK(s.command("MGET", "b", "a") == std::string("(nil)\n1\r\n\0002", 11));
    CHECK(s.command("EXISTS", "a") == "1");
    CHECK_THAT(s.command("FETCH"), StartsWith("-ERR unknown command"));
    int const port = s.port();
    s.kill();
    CHECK(cause_of([&] { return s.command("GET", "a"); }) == cause::refused);
    s.restart();
    CHECK(s.port() == port);
    CHECK(s.command("GET", "a") == "(nil)");
    CHECK(std::filesystem::exists(folder));
  }
  CHECK_FALSE(std::filesystem::exists(folder));
}

TEST_CASE("a server with a password answers only who knows it") {
  needs_server();
  server s({.password = "open sesame"});
  CHECK(s.command("SET", "a", "1") == "OK");
  connection stranger(s.port());
  CHECK_THAT(stranger.command("GET", "a"), StartsWith("-NOAUTH"));
  CHECK_THAT(stranger.command("AUTH", "sesame"), StartsWith("-WRONGPASS"));
  CHECK(stranger.command("AUTH", "open sesame") == "OK");
  CHECK(stranger.command("GET", "a") == "1");
}

TEST_CASE("a server whose memory is full refuses writes and drops nothing") {
  needs_server();
  server s({.maxmemory = 8 << 20});
  auto asked = s.connect();
  std::string const value(100'000, 'x');
  int kept = 0;
  std::string said;
  while (kept < 200 && (said = asked.command("SET", "k" + std::to_string(kept), value)) == "OK") ++kept;
  CHECK_THAT(said, StartsWith("-OOM"));
  CHECK(kept > 20);
  CHECK(asked.command("DBSIZE") == std::to_string(kept));
  CHECK(asked.command("GET", "k0") == value);
}

TEST_CASE("a paused server takes a connection and answers when it goes on") {
  needs_server();
  server s;
  s.pause();
  CHECK_FALSE(s.answering());
  CHECK(cause_of([&] { return s.connect(200ms).command("PING"); }) == cause::timed_out);
  auto asked = s.connect();
  asked.send({"PING"});
  s.resume();
  CHECK(asked.receive() == "PONG");
  s.pause();
  s.kill();
  CHECK(cause_of([&] { return s.command("PING"); }) == cause::refused);
}

TEST_CASE("a server speaks TLS to who trusts its authority") {
  if (auto const why = why_no_tls(); !why.empty()) SKIP(why);
  server s({.tls = true});
  auto const ask = [&](std::string const& authority) {
    return shell("printf 'PING\\r\\nQUIT\\r\\n' | openssl s_client -quiet -verify_return_error -CAfile " + quoted(authority) +
                 " -verify_ip 127.0.0.1 -connect 127.0.0.1:" + std::to_string(s.tls_port()));
  };
  CHECK(s.command("PING") == "PONG");  // its other port
  CHECK(ask(s.shown().ca).output.find("+PONG\r\n+OK") != std::string::npos);
  kvpolicy_test::scratch_folder const other;
  auto const refused = ask(make_certificate(other.path()).ca);
  CHECK(refused.status != 0);
  CHECK(refused.output.find("PONG") == std::string::npos);
}

TEST_CASE("a server ends when the test that started it is killed") {
  needs_server();
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  pid_t const child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      server s;
      std::string const line = std::to_string(s.port()) + " " + s.folder();
      if (write(ends[1], line.data(), line.size()) > 0) raise(SIGKILL);
    } catch (std::exception const&) {
    }
    _exit(1);  // not back into the tests
  }
  close(ends[1]);
  std::array<char, 500> said{};
  pollfd from{ends[0], POLLIN, 0};
  CHECK(poll(&from, 1, 15'000) == 1);
  ssize_t const size = read(ends[0], said.data(), said.size());
  close(ends[0]);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  REQUIRE(size > 0);
  std::string const line(said.data(), static_cast<std::size_t>(size));
  int const port = std::stoi(line);
  CHECK(within(5s, [&] { return cause_of([&] { connection made(port); }) == cause::refused; }));
  std::filesystem::remove_all(line.substr(line.find(' ') + 1));
}

TEST_CASE("the proxy passes, holds, cuts and turns what a server says") {
  needs_server();
  server s;
  slow_proxy proxy(s.port());
  std::string const value(100'000, 'x');
  REQUIRE(s.command("SET", "a", value) == "OK");
  connection asked(proxy.port(), 1000ms);
  CHECK(asked.command("GET", "a") == value);
  CHECK(proxy.passed() == std::ssize(value) + 11);  // "$100000\r\n" before it, "\r\n" behind

  SECTION("late") {
    proxy.delay(100ms);
    auto const began = std::chrono::steady_clock::now();
    CHECK(asked.command("GET", "a") == value);
    CHECK(std::chrono::steady_clock::now() - began >= 100ms);
    proxy.delay(10s);
    CHECK(cause_of([&] { return asked.command("PING"); }) == cause::timed_out);
    proxy.heal();
    CHECK(asked.receive() == "PONG");
  }
  SECTION("stuck") {
    proxy.stall();
    asked.send({"PING"});
    CHECK(cause_of([&] { return asked.receive(); }) == cause::timed_out);
    CHECK(cause_of([&] { return connection(proxy.port(), 200ms).command("PING"); }) == cause::timed_out);
    proxy.heal();
    CHECK(asked.receive() == "PONG");
  }
  SECTION("cut in a reply") {
    proxy.cut_after(50'000);
    CHECK(cause_of([&] { return asked.command("GET", "a"); }) == cause::closed);
    CHECK(connection(proxy.port()).command("GET", "a") == value);
  }
  SECTION("cut in a request") {
    proxy.cut_after(50'000, slow_proxy::way::to_server);
    CHECK(cause_of([&] { return asked.command("SET", "a", std::string(100'000, 'y')); }) == cause::closed);
    CHECK(s.command("GET", "a") == value);
  }
  SECTION("turned in a value") {
    proxy.flip_after(9 + 70'000);
    std::string turned = value;
    turned[70'000] = static_cast<char>(~'x');
    CHECK(asked.command("GET", "a") == turned);
    CHECK(asked.command("GET", "a") == value);
  }
  SECTION("turned in the protocol") {
    proxy.flip_after(0);
    CHECK(cause_of([&] { return asked.command("GET", "a"); }) == cause::garbled);
  }
  SECTION("turned in a request") {
    proxy.flip_after(0, slow_proxy::way::to_server);
    CHECK_THAT(asked.command("GET", "a"), StartsWith("-ERR"));
  }
  SECTION("the server is gone") {
    s.kill();
    CHECK(cause_of([&] { return asked.command("PING"); }) == cause::closed);
    CHECK(cause_of([&] { return connection(proxy.port()).command("PING"); }) == cause::closed);
  }
}
