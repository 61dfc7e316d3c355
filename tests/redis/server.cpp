#include "redis/server.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

#include "redis/shell.hpp"
#include "redis/within.hpp"

namespace kvpolicy_test::redis {

namespace {

std::string on_path(std::string const& program) {
  char const* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string const file = folder + "/" + program;
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

// A server is one program with its file checker, and asks for the name that it was called by. Debian's tools have it under the
// checker's name alone: then a link gives it the other.
std::string server_program() {
  static scratch_folder const links;
  for (std::string const kind : {"valkey", "redis"}) {
    if (std::string const found = on_path(kind + "-server"); !found.empty()) return found;
  }
  for (std::string const kind : {"valkey", "redis"}) {
    std::string const checker = on_path(kind + "-check-rdb");
    std::string const link = links.path() + "/" + kind + "-server";
    if (!checker.empty() && (access(link.c_str(), X_OK) == 0 || symlink(checker.c_str(), link.c_str()) == 0)) return link;
  }
  return {};
}

bool is_free(int port) {
  int const made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int const yes = 1;
  setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bool const bound = bind(made, reinterpret_cast<sockaddr const*>(&at), sizeof at) == 0;
  close(made);
  return bound;
}

// Below those that the kernel gives to outgoing connections: one of these may take a server's port while it is restarted.
int free_port() {
  std::random_device random;
  std::uniform_int_distribution<int> ports(20000, 31999);
  for (int tries = 0; tries < 1000; ++tries) {
    if (int const port = ports(random); is_free(port)) return port;
  }
  throw std::runtime_error("no free port");
}

}  // namespace

std::string why_no_server() {
  if (!connection::available()) return "compiled without hiredis";
  if (server_program().empty())
    return "there is no valkey-server and no redis-server on PATH; cmake/bootstrap.sh packages installs one";
  return {};
}

std::string why_no_tls() {
  if (auto const why = why_no_server(); !why.empty()) return why;
  if (on_path("openssl").empty()) return "there is no openssl on PATH";
  // Refused as unknown, or it finds that it has nothing to do; it ends at once.
  scratch_folder const folder;
  auto const said = shell("cd " + quoted(folder.path()) + " && exec " + quoted(server_program()) + " --port 0 --tls-port 0");
  return said.output.find("not listen anywhere") == std::string::npos ? "the server was built without TLS" : "";
}

server::server(server_options options) : options_(std::move(options)) {
  if (auto const why = why_no_server(); !why.empty()) throw std::runtime_error(why);
  if (options_.tls) certificate_ = make_certificate(folder_.path());
  // Another program can take a port between the choice and the use.
  for (int tries = 0; tries < 10; ++tries) {
    port_ = free_port();
    tls_port_ = options_.tls ? free_port() : 0;
    bus_port_ = options_.cluster ? free_port() : 0;
    auto const what = start();
    if (what == outcome::answers) return;
    if (what == outcome::late) break;
  }
  throw std::runtime_error("the server does not start: " + log());
}

std::vector<std::string> server::arguments() const {
  std::vector<std::string> made{server_program(), "--bind", "127.0.0.1", "--port", std::to_string(port_)};
  auto const set = [&](char const* name, std::string const& value) {
    made.push_back(std::string("--") + name);
    made.push_back(value);
  };
  set("dir", folder_.path());
  set("save", "");
  set("appendonly", "no");
  set("maxmemory-policy", "noeviction");
  if (options_.maxmemory > 0) set("maxmemory", std::to_string(options_.maxmemory));
  if (!options_.password.empty()) {
    set("requirepass", options_.password);
    set("masterauth", options_.password);
  }
  if (options_.tls) {
    set("tls-port", std::to_string(tls_port_));
    set("tls-ca-cert-file", certificate_.ca);
    set("tls-cert-file", certificate_.file);
    set("tls-key-file", certificate_.key);
    set("tls-auth-clients", "no");
  }
  if (options_.cluster) {
    set("cluster-enabled", "yes");
    set("cluster-port", std::to_string(bus_port_));
  }
  for (std::size_t i = 0; i + 1 < options_.more.size(); i += 2) set(options_.more[i].c_str(), options_.more[i + 1]);
  return made;
}

server::outcome server::start() {
  process_ = std::make_unique<process>(arguments(), folder_.file("log"));
  paused_ = false;
  // By its process: another test's server may have been quicker to take the port.
  std::string const mark = "process_id:" + std::to_string(process_->id()) + "\r";
  bool const answers = within(std::chrono::seconds(10), [&] {
    if (!process_->running()) return true;
    try {
      auto asked = connect(std::chrono::milliseconds(500));
      return asked.command("INFO", "server").find(mark) != std::string::npos && asked.command("PING") == "PONG";
    } catch (std::runtime_error const&) {
      return false;
    }
  });
  if (!process_->running()) return outcome::ended;
  return answers ? outcome::answers : outcome::late;
}

std::string server::log() const {
  std::ifstream in(folder_.file("log"), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void server::pause() {
  process_->pause();
  paused_ = true;
}

void server::resume() {
  process_->resume();
  paused_ = false;
}

void server::kill() { process_->kill(); }

void server::restart() {
  process_.reset();
  if (start() != outcome::answers) throw std::runtime_error("the server does not start again: " + log());
}

connection server::connect(std::chrono::milliseconds limit) const {
  connection made(port_, limit);
  if (options_.password.empty()) return made;
  if (auto const said = made.command("AUTH", options_.password); said != "OK") throw std::runtime_error("AUTH: " + said);
  return made;
}

}  // namespace kvpolicy_test::redis
