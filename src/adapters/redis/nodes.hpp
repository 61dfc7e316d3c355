// Where a cluster's slots are, and orders that are carried out by whoever has them; or one server, which has all.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvpolicy/tiers/redis.hpp"
#include "link.hpp"

namespace kvpolicy::tiers {

/// Commands for one slot, sent together. Reads that a slot on the move has in two places are refused together, and have to be
/// ordered one by one.
struct redis_order {
  int slot = 0;
  std::string commands{};
  std::size_t replies = 1;
  bool reads = false;  ///< replicas may be asked
  bool done = false;   ///< carried out, or refused for good: `got` says which
  std::vector<redis_reply> got{};
  std::string ask{};  ///< who has it while its slot moves
};

/// Not thread-safe.
class redis_nodes {
 public:
  /// Throws error where no node answers, or one refuses the password.
  explicit redis_nodes(redis_options const& options);

  static int slot_of(std::string_view tag) noexcept;

  /// Until all are done, or the deadline has passed.
  void run(std::span<redis_order> orders, clock::time_point deadline);

 private:
  static constexpr int slots = 16384;
  /// A primary, and a replica if there is one.
  struct owner {
    std::string primary{};
    std::string replica{};
  };

  std::string const& target_of(redis_order const& order, int round) const;
  bool round(std::span<redis_order> orders, int number, clock::time_point deadline);
  /// What came back: done, or where to ask next. Returns whether the slots should be looked up anew.
  bool judge(redis_order& order, std::string const& asked);
  redis_link& link_to(std::string const& node, bool replica, clock::time_point deadline);
  void lose(std::string const& node);
  bool refresh(clock::time_point deadline, std::string& why);
  bool learn(std::string const& node, clock::time_point deadline);
  std::string address_of(redisReply const& node, std::string const& asked) const;

  redis_options options_;
  std::vector<owner> owners_;            ///< each that there is
  std::vector<std::uint16_t> owner_of_;  ///< of each slot, among them
  std::map<std::string, std::unique_ptr<redis_link>> links_;
  std::set<std::string> silent_;  ///< did not answer when they were last asked
};

}  // namespace kvpolicy::tiers
