#include "redis/cluster.hpp"

#include <algorithm>
#include <limits>
#include <sstream>

#include "redis/within.hpp"

namespace kvpolicy_test::redis {

namespace {

constexpr std::chrono::seconds patience{20};

template <class... Words>
void order(server const& to, Words const&... words) {
  if (auto const said = to.command(words...); said != "OK") {
    throw std::runtime_error("a node refuses " + ((std::string(words) + " ") + ...) + said);
  }
}

bool serves(server const& asked) { return asked.command("CLUSTER", "INFO").find("cluster_state:ok") != std::string::npos; }

/// The lines of CLUSTER NODES that have a word among their flags.
std::int64_t count_flag(std::string const& table, std::string const& flag) {
  std::istringstream lines(table);
  std::int64_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string id, address, flags;
    words >> id >> address >> flags;
    count += ("," + flags + ",").find("," + flag + ",") != std::string::npos;
  }
  return count;
}

}  // namespace

cluster::cluster(cluster_options options) : options_(std::move(options)) {
  server_options each{.password = options_.password, .cluster = true, .more = options_.more};
  // No node changes its shard by itself, and a replica is as fit to take over as it will ever be.
  each.more.insert(each.more.end(),
                   {"cluster-node-timeout", std::to_string(options_.node_timeout.count()), "cluster-allow-replica-migration",
                    "no", "cluster-replica-validity-factor", "0", "repl-diskless-sync-delay", "0"});
  for (int i = 0; i < (options_.replicas ? 2 : 1) * shards; ++i) nodes_.push_back(std::make_unique<server>(each));
  join();
}

void cluster::join() {
  for (int i = 0; i < nodes(); ++i) order(node(i), "CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1));
  for (int i = 0; i < shards; ++i) {
    order(node(i), "CLUSTER", "ADDSLOTSRANGE", std::to_string(slots * i / shards),
          std::to_string(slots * (i + 1) / shards - 1));
  }
  for (int i = 1; i < nodes(); ++i) {
    order(node(0), "CLUSTER", "MEET", "127.0.0.1", std::to_string(node(i).port()), std::to_string(node(i).bus_port()));
  }
  if (!within(patience, [&] { return know_each_other(); })) throw std::runtime_error("the nodes do not meet");
  for (int i = shards; i < nodes(); ++i) order(node(i), "CLUSTER", "REPLICATE", id_of(partner_of(i)));
  if (!within(patience, [&] { return serving(); })) throw std::runtime_error("the cluster does not serve");
}

bool cluster::know_each_other() {
  return std::ranges::all_of(nodes_, [&](auto const& n) {
    std::string const table = n->command("CLUSTER", "NODES");
    return std::ranges::count(table, '\n') == nodes() && count_flag(table, "handshake") == 0;
  });
}

bool cluster::serving() {
  for (int i = 0; i < nodes(); ++i) {
    if (!serves(node(i))) return false;
    if (count_flag(node(i).command("CLUSTER", "NODES"), "slave") != nodes() - shards) return false;
    if (i >= shards && node(i).command("INFO", "replication").find("master_link_status:up") == std::string::npos) return false;
  }
  return true;
}

/// By slot, the node that has it; -1: none.
std::vector<int> cluster::owners_seen_by(int i) {
  std::vector<int> owners(slots, -1);
  std::istringstream lines(node(i).command("CLUSTER", "NODES"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string id, address, word;
    words >> id >> address;
    for (int skipped = 0; skipped < 6; ++skipped) words >> word;  // flags, primary, ping, pong, epoch, link
    int const port = std::stoi(address.substr(address.find(':') + 1));
    auto const who = std::ranges::find(nodes_, port, [](auto const& n) { return n->port(); }) - nodes_.begin();
    while (words >> word && word[0] != '[') {  // a slot that is being moved is in brackets, behind the others
      auto const dash = word.find('-');
      int const first = std::stoi(word);
      int const last = dash == std::string::npos ? first : std::stoi(word.substr(dash + 1));
      std::fill(owners.begin() + first, owners.begin() + last + 1, static_cast<int>(who));
    }
  }
  return owners;
}

int cluster::primary_of(int slot) {
  int found = -1;
  bool const agreed = within(patience, [&] {
    found = -1;
    for (int i = 0; i < nodes(); ++i) {
      if (!node(i).answering()) continue;
      int const said = owners_seen_by(i)[static_cast<std::size_t>(slot)];
      if (said < 0 || (found >= 0 && said != found)) return false;
      found = said;
    }
    return found >= 0;
  });
  if (!agreed) throw std::runtime_error("the nodes do not agree on slot " + std::to_string(slot));
  return found;
}

int cluster::slot_of(std::string_view key) {
  auto const asked = std::ranges::find_if(nodes_, [](auto const& n) { return n->answering(); });
  if (asked == nodes_.end()) throw std::runtime_error("no node answers");
  return std::stoi((*asked)->command("CLUSTER", "KEYSLOT", key));
}

void cluster::move_slot(int slot, int to) {
  open_slot(slot, to);
  carry_keys(slot, to, std::numeric_limits<int>::max());
  settle_slot(slot, to);
}

void cluster::open_slot(int slot, int to) {
  int const from = primary_of(slot);
  if (from == to) throw std::runtime_error("the slot is there already");
  order(node(to), "CLUSTER", "SETSLOT", std::to_string(slot), "IMPORTING", id_of(from));
  order(node(from), "CLUSTER", "SETSLOT", std::to_string(slot), "MIGRATING", id_of(to));
}

// One by one, as a key may hold any byte.
int cluster::carry_keys(int slot, int to, int at_most) {
  server& from = node(primary_of(slot));
  std::string const port = std::to_string(node(to).port());
  for (int carried = 0; carried < at_most; ++carried) {
    std::string const key = from.command("CLUSTER", "GETKEYSINSLOT", std::to_string(slot), "1");
    if (key.empty()) return carried;
    if (options_.password.empty()) {
      order(from, "MIGRATE", "127.0.0.1", port, key, "0", "1000");
    } else {
      order(from, "MIGRATE", "127.0.0.1", port, key, "0", "1000", "AUTH", options_.password);
    }
  }
  return at_most;
}

void cluster::settle_slot(int slot, int to) {
  int const from = primary_of(slot);
  std::string const id = id_of(to);
  // First whom it goes to: between the two orders, a client may be sent to and fro but not to nowhere.
  order(node(to), "CLUSTER", "SETSLOT", std::to_string(slot), "NODE", id);
  order(node(from), "CLUSTER", "SETSLOT", std::to_string(slot), "NODE", id);
  if (primary_of(slot) != to) throw std::runtime_error("the slot did not move");
}

bool cluster::wait_for_failover(int lost, std::chrono::milliseconds limit) {
  return within(limit, [&] {
    for (int i = 0; i < nodes(); ++i) {
      if (!node(i).answering()) continue;
      if (!serves(node(i))) return false;
      auto const owners = owners_seen_by(i);
      if (std::ranges::count(owners, lost) + std::ranges::count(owners, -1) > 0) return false;
    }
    return true;
  });
}

}  // namespace kvpolicy_test::redis
