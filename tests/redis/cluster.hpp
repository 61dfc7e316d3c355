// A real cluster for one test: three primaries, and a replica of each where wanted.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "redis/server.hpp"

namespace kvpolicy_test::redis {

struct cluster_options {
  bool replicas = false;
  std::string password = {};
  std::chrono::milliseconds node_timeout{1000};  ///< how long a node may be silent before it is lost
  std::vector<std::string> more = {};            ///< settings of every node, as server_options::more
};

/// Serves all slots when the constructor ends, after two seconds: a primary serves no sooner. Nodes are 0..2, primaries at
/// first, in the slots' order, a third each; with replicas 3..5, where i + 3 is of the same shard as i. A node is killed,
/// paused and brought back by itself. Waits throw where nothing comes of them; not for more than one thread.
class cluster {
 public:
  static constexpr int shards = 3;
  static constexpr int slots = 16384;

  explicit cluster(cluster_options options = {});

  int nodes() const noexcept { return static_cast<int>(nodes_.size()); }
  server& node(int i) { return *nodes_[static_cast<std::size_t>(i)]; }

  /// What every node that answers says; waits until they agree.
  int primary_of(int slot);
  int primary_of(std::string_view key) { return primary_of(slot_of(key)); }
  int slot_of(std::string_view key);

  /// Moves a slot and its keys to another primary: open, carry, settle. In between, its primary answers ASK for a key that it
  /// doesn't have, and the other one MOVED to who has not sent ASKING.
  void move_slot(int slot, int to);
  void open_slot(int slot, int to);
  int carry_keys(int slot, int to, int at_most);  ///< returns how many went
  void settle_slot(int slot, int to);

  /// After a primary was killed or paused: until its shard's other node has all of its slots, and all nodes left serve.
  bool wait_for_failover(int lost, std::chrono::milliseconds limit = std::chrono::seconds(20));

  /// The other node of a shard.
  static int partner_of(int i) noexcept { return i < shards ? i + shards : i - shards; }

 private:
  void join();
  bool know_each_other();
  bool serving();
  std::vector<int> owners_seen_by(int i);
  std::string id_of(int i) { return node(i).command("CLUSTER", "MYID"); }

  cluster_options options_;
  std::vector<std::unique_ptr<server>> nodes_;
};

}  // namespace kvpolicy_test::redis
