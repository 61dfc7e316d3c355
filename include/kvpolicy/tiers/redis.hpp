// Tier: a Redis or Valkey server, or a cluster. Compiled (link kvpolicy::redis).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "kvpolicy/tiers/tier.hpp"

namespace kvpolicy::tiers {

/// Where the servers are, and how long to wait for them.
struct redis_options {
  std::vector<std::string> nodes{"127.0.0.1:6379"};  ///< "host:port" of the server, or of a few nodes of the cluster
  std::string user{};                                ///< for the password; empty: the default user
  std::string password{};                            ///< empty: none
  /// A name for the blocks, for several processes or machines that share them; empty: the blocks are this tier's alone.
  /// Everyone who gives the same name reads the blocks. A block's key must then say what is in the block: for instance, its
  /// request is a hash of the prompt. Without a name the blocks go with the tier.
  std::string space{};
  std::chrono::milliseconds deadline{2000};  ///< of a put, or of a get from its turn on
  std::chrono::milliseconds attempt{500};    ///< of one exchange with one node, before another is tried
  std::chrono::seconds lifetime{86400};      ///< after this the servers forget a block, even if this process has died
  int replicas = 0;                          ///< copies that a block must have before its put is acknowledged
};

/// Keeps blocks on Redis servers. Models tier_like.
/// A put is one transaction for each request and layer, whose blocks lie in one slot of a cluster. A put that fails leaves what
/// was there; in a shared space, the part that got through stays. A block carries its whole key and a checksum of key and
/// bytes, so a get brings that block or is a miss, never another or a damaged one. It is also a miss if a server lost what it
/// acknowledged (memory evicted, a failover before replication). Gets are pipelined; a worker thread verifies them in memory of
/// its own, and copies them to their destinations only if every block is right. Nodes that move or fail are followed until the
/// deadline, and gets ask replicas too.
class redis {
 public:
  /// Connects to the servers.
  /// @param options  where they are
  /// @param block_bytes  bytes of a block, less than 512 MiB
  /// @param capacity  the most blocks that this tier puts
  /// @throws error with the last node's reason, if none answers
  /// @throws invalid_value for invalid options or sizes
  redis(redis_options options, std::int64_t block_bytes, std::int64_t capacity);
  redis(redis const&) = delete;
  redis& operator=(redis const&) = delete;
  ~redis();

  std::int64_t block_bytes() const noexcept;
  std::int64_t capacity() const noexcept;
  /// Returns a text with the first node's name.
  std::string describe() const;
  bool put(std::span<block_write const> writes);
  ticket get(std::span<block_read const> reads);
  status poll(ticket id);
  status wait(ticket id, clock::time_point deadline);
  /// Drops blocks: from now on nobody reads them.
  /// A server that does not answer gets the command later, or forgets the blocks when their lifetime ends.
  /// @param keys  the blocks; absent ones are ignored
  void drop(std::span<block_key const> keys);
  /// Counts the blocks that this tier put: in flight while a get that names them has not ended, else resident.
  usage occupied();

 private:
  class store;
  std::unique_ptr<store> store_;
};

static_assert(tier_like<redis>);

}  // namespace kvpolicy::tiers
