// Tier: a Redis or Valkey server, or a cluster of them. Compiled (link kvpolicy::redis).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "kvpolicy/tiers/tier.hpp"

namespace kvpolicy::tiers {

struct redis_options {
  std::vector<std::string> nodes{"127.0.0.1:6379"};  ///< "host:port" of the server, or of a few of the cluster's
  std::string user{};                                ///< with a password; empty: the default user
  std::string password{};                            ///< empty: none
  /// Whose blocks these are, on servers that others use too. Empty: this tier's alone, gone with it. A name: whoever gives the
  /// same one reads them, in other processes and on other machines, so that a block's key must say what is in it (a hash of the
  /// prompt as its request, for instance).
  std::string space{};
  std::chrono::milliseconds deadline{2000};  ///< of a put, or a get once it has its turn
  std::chrono::milliseconds attempt{500};    ///< of one exchange with one node; then another is tried
  std::chrono::seconds lifetime{86400};      ///< after which the servers forget a block, whatever became of this process
  int replicas = 0;                          ///< that must have a block before its put is acknowledged
};

/// A put is one transaction for each request and layer, whose blocks lie in one slot. A block carries its whole key and a
/// checksum of both: what comes back is that block or a miss, never another one's, or half of one. A put that fails, for
/// whatever reason, leaves what was there (in a shared space, what got through stays); a server that loses what it acknowledged
/// (memory evicted, a failover before it was replicated) is a miss. Gets are pipelined, verified in memory of their own by a
/// worker thread, and copied to their destinations only when every block is right. Nodes that move, or fail, are followed until
/// the deadline; gets ask replicas too.
class redis {
 public:
  /// Throws error with the nodes and the reason where none of them answers, invalid_value for options that can't be.
  redis(redis_options options, std::int64_t block_bytes, std::int64_t capacity);
  redis(redis const&) = delete;
  redis& operator=(redis const&) = delete;
  ~redis();

  std::int64_t block_bytes() const noexcept;
  std::int64_t capacity() const noexcept;
  /// With the nodes.
  std::string describe() const;
  bool put(std::span<block_write const> writes);
  ticket get(std::span<block_read const> reads);
  status poll(ticket id);
  status wait(ticket id, clock::time_point deadline);
  /// Servers that do not answer are told later, or forget the blocks when their lifetime ends: nobody reads them any more.
  void drop(std::span<block_key const> keys);
  /// Of what this tier put. Blocks are in flight while a get that names them has not ended.
  usage occupied();

 private:
  class store;
  std::unique_ptr<store> store_;
};

static_assert(tier_like<redis>);

}  // namespace kvpolicy::tiers
