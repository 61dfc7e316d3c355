// A real server, Valkey or Redis, for one test: on the loopback, with nothing kept on disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conformance/scratch_folder.hpp"
#include "redis/certificate.hpp"
#include "redis/connection.hpp"
#include "redis/process.hpp"

namespace kvpolicy_test::redis {

/// Why no server can run here, for a SKIP; empty where one can.
std::string why_no_server();
/// The same, of one that speaks TLS.
std::string why_no_tls();

struct server_options {
  std::string password = {};
  std::int64_t maxmemory = 0;  ///< bytes, above which a write is refused (noeviction); 0: no limit; an empty server uses 1 MB
  bool tls = false;            ///< a second port, for TLS alone; clients need no certificate
  bool cluster = false;
  std::vector<std::string> more = {};  ///< names and values of further settings, as in {"hz", "100"}
};

/// Answers when the constructor ends. Not for more than one thread.
class server {
 public:
  explicit server(server_options options = {});

  int port() const noexcept { return port_; }
  int tls_port() const noexcept { return tls_port_; }  ///< 0: no TLS
  int bus_port() const noexcept { return bus_port_; }  ///< 0: no cluster
  certificate const& shown() const noexcept { return certificate_; }
  std::string const& password() const noexcept { return options_.password; }
  std::string folder() const { return folder_.path(); }
  std::string log() const;

  void pause();   ///< it takes connections, by the kernel, and answers nothing
  void resume();  ///< what it was asked meanwhile is answered
  void kill();
  void restart();  ///< on the same ports, empty; a node of a cluster remembers the cluster
  bool answering() { return !paused_ && process_ && process_->running(); }

  /// With the password given, if there is one.
  connection connect(std::chrono::milliseconds limit = std::chrono::seconds(5)) const;

  /// On a connection of its own. Throws no_answer; an error of the server's is a reply, with "-" before it.
  template <class... Words>
  std::string command(Words const&... words) const {
    return connect().command(words...);
  }

 private:
  enum class outcome { answers, ended, late };
  outcome start();
  std::vector<std::string> arguments() const;

  server_options options_;
  scratch_folder folder_;
  certificate certificate_;
  int port_ = 0;
  int tls_port_ = 0;
  int bus_port_ = 0;
  bool paused_ = false;
  std::unique_ptr<process> process_;
};

}  // namespace kvpolicy_test::redis
