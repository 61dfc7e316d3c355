// A connection to one server that speaks RESP, with a deadline for everything.
#pragma once

#include <hiredis/hiredis.h>

#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kvpolicy/tiers/tier.hpp"

namespace kvpolicy::tiers {

struct free_reply {
  void operator()(redisReply* reply) const noexcept { freeReplyObject(reply); }
};
using redis_reply = std::unique_ptr<redisReply, free_reply>;

/// The server can't be reached, was silent too long, hung up, or does not speak RESP: the connection is of no use any more.
struct lost_link : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// One command in RESP.
void append_command(std::string& to, std::initializer_list<std::string_view> words);
void append_command(std::string& to, std::vector<std::string> const& words);
std::string redis_command(std::initializer_list<std::string_view> words);

/// hiredis reads the replies; sockets are our own: its timeouts are those of single reads, and its writes raise SIGPIPE.
class redis_link {
 public:
  /// "host:port". Throws lost_link.
  redis_link(std::string const& address, clock::time_point deadline);
  redis_link(redis_link const&) = delete;
  redis_link& operator=(redis_link const&) = delete;
  ~redis_link();

  /// Sends commands and takes as many replies. Throws lost_link.
  std::vector<redis_reply> exchange(std::string_view commands, std::size_t replies, clock::time_point deadline);

 private:
  struct free_reader {
    void operator()(redisReader* reader) const noexcept { redisReaderFree(reader); }
  };
  short wait_for(short events, clock::time_point deadline) const;
  void receive(std::vector<redis_reply>& into, std::size_t wanted);

  std::string address_;
  int socket_ = -1;
  std::unique_ptr<redisReader, free_reader> reader_;
  std::vector<char> received_;
};

}  // namespace kvpolicy::tiers
