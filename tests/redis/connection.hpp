// One connection to a server, by hiredis, that waits for no answer longer than it was told to.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

struct redisContext;

namespace kvpolicy_test::redis {

/// No whole reply came. The connection is of no use after it; only of one that timed out can the reply still be received.
class no_answer : public std::runtime_error {
 public:
  enum class cause { refused, timed_out, closed, garbled };
  no_answer(cause why, std::string const& what) : std::runtime_error(what), why_(why) {}
  cause why() const noexcept { return why_; }

 private:
  cause why_;
};

/// Why a command got no answer; nothing where it got one.
template <class Ask>
std::optional<no_answer::cause> cause_of(Ask ask) {
  try {
    ask();
    return {};
  } catch (no_answer const& e) {
    return e.why();
  }
}

class connection {
 public:
  /// Whether this was compiled with hiredis; without, the constructor throws.
  static bool available() noexcept;

  /// To 127.0.0.1. The limit is of the connect, and again of each send and receive as a whole.
  explicit connection(int port, std::chrono::milliseconds limit = std::chrono::seconds(5));

  /// A reply as text: an error with "-" before it ("-MOVED 1 127.0.0.1:7000"), nil as "(nil)", an array's elements a line each.
  template <class... Words>
  std::string command(Words const&... words) {
    send({std::string(words)...});
    return receive();
  }

  /// The halves of a command; more than one can be under way.
  void send(std::vector<std::string> const& words);
  std::string receive();

 private:
  struct closer {
    void operator()(redisContext* context) const noexcept;
  };
  std::unique_ptr<redisContext, closer> context_;
  std::chrono::milliseconds limit_;
};

}  // namespace kvpolicy_test::redis
