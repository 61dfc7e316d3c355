#include "nodes.hpp"

#include <algorithm>
#include <thread>

#include "kvpolicy/error.hpp"

namespace kvpolicy::tiers {
namespace {

using std::chrono::milliseconds;

std::string_view text_of(redisReply const& reply) noexcept { return {reply.str, static_cast<std::size_t>(reply.len)}; }

redisReply const* error_in(redis_order const& order) noexcept {
  auto const failed = std::ranges::find_if(order.got, [](redis_reply const& r) { return r->type == REDIS_REPLY_ERROR; });
  return failed == order.got.end() ? nullptr : failed->get();
}

std::string host_of(std::string const& address) { return address.substr(0, address.rfind(':')); }

}  // namespace

redis_nodes::redis_nodes(redis_options const& options) : options_(options), owner_of_(slots) {
  std::string why;
  if (!refresh(clock::now() + options_.deadline, why)) throw error("no server of a remote tier answers: " + why);
}

/// CRC-16/XMODEM, as the protocol has it.
int redis_nodes::slot_of(std::string_view tag) noexcept {
  unsigned crc = 0;
  for (char const c : tag) {
    crc ^= static_cast<unsigned>(static_cast<unsigned char>(c)) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000u) != 0 ? crc << 1 ^ 0x1021u : crc << 1;
  }
  return static_cast<int>((crc & 0xffffu) % slots);
}

void redis_nodes::run(std::span<redis_order> orders, clock::time_point deadline) {
  auto const left = [&] { return !std::ranges::all_of(orders, [](redis_order const& o) { return o.done; }); };
  auto pause = milliseconds(1);
  for (int number = 0; left() && clock::now() < deadline; ++number) {
    bool const moved = round(orders, number, deadline);
    if (!left()) return;
    std::string why;
    if (moved) refresh(deadline, why);
    if (number > 0) std::this_thread::sleep_for(std::min(pause *= 2, milliseconds(50)));
  }
}

std::string const& redis_nodes::target_of(redis_order const& order, int round) const {
  if (!order.ask.empty()) return order.ask;
  owner const& of = owners_[owner_of_[static_cast<std::size_t>(order.slot)]];
  return order.reads && round % 2 == 1 && !of.replica.empty() ? of.replica : of.primary;
}

/// Asks each node for what it should have; those that were silent last.
bool redis_nodes::round(std::span<redis_order> orders, int number, clock::time_point deadline) {
  std::map<std::string, std::vector<redis_order*>> by_node;
  for (redis_order& order : orders) {
    if (!order.done) by_node[target_of(order, number)].push_back(&order);
  }
  std::vector<std::string> nodes;
  for (auto const& node : by_node) nodes.push_back(node.first);
  std::ranges::stable_partition(nodes, [&](std::string const& node) { return !silent_.contains(node); });
  bool moved = false;
  for (std::string const& node : nodes) {
    std::vector<redis_order*> const& theirs = by_node[node];
    std::string commands;
    std::size_t replies = 0;
    for (redis_order* const order : theirs) {
      if (!order->ask.empty()) commands += redis_command({"ASKING"});
      replies += order->replies + (order->ask.empty() ? 0 : 1);
      commands += order->commands;
    }
    bool const replica = std::ranges::any_of(owners_, [&](owner const& o) { return o.replica == node; });
    clock::time_point const turn = std::min(deadline, clock::now() + options_.attempt);
    try {
      std::vector<redis_reply> got = link_to(node, replica, turn).exchange(commands, replies, turn);
      silent_.erase(node);
      auto next = got.begin();
      for (redis_order* const order : theirs) {
        if (!order->ask.empty()) ++next;
        order->ask.clear();
        order->got.clear();
        for (std::size_t i = 0; i < order->replies; ++i) order->got.push_back(std::move(*next++));
        moved = judge(*order, node) || moved;
        // A replica may not have it yet.
        auto const is_nil = [](redis_reply const& r) { return r->type == REDIS_REPLY_NIL; };
        if (replica && order->done && std::ranges::any_of(order->got, is_nil)) order->done = false;
      }
    } catch (lost_link const&) {
      lose(node);
      for (redis_order* const order : theirs) order->ask.clear();
      moved = true;
    }
  }
  return moved;
}

bool redis_nodes::judge(redis_order& order, std::string const& asked) {
  redisReply const* const failed = error_in(order);
  order.done = failed == nullptr;
  if (failed == nullptr) return false;
  std::string_view const said = text_of(*failed);
  auto const target = [&] {
    std::string_view const address = said.substr(said.rfind(' ') + 1);
    return address.starts_with(':') ? host_of(asked) + std::string(address) : std::string(address);
  };
  if (said.starts_with("ASK ")) {
    order.done = order.reads && order.replies > 1;
    if (!order.done) order.ask = target();
    return false;
  }
  if (said.starts_with("MOVED ")) {
    owner const now{target(), {}};
    auto const known = std::ranges::find(owners_, now.primary, &owner::primary);
    auto const at = known - owners_.begin();
    if (known == owners_.end()) owners_.push_back(now);
    owner_of_[static_cast<std::size_t>(order.slot)] = static_cast<std::uint16_t>(at);
    return false;
  }
  for (char const* const soon : {"TRYAGAIN", "CLUSTERDOWN", "LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS"}) {
    if (said.starts_with(soon)) return true;
  }
  order.done = true;
  return false;
}

redis_link& redis_nodes::link_to(std::string const& node, bool replica, clock::time_point deadline) {
  std::unique_ptr<redis_link>& link = links_[node];
  if (link != nullptr) return *link;
  auto made = std::make_unique<redis_link>(node, deadline);
  std::string greeting;
  std::size_t replies = 0;
  if (!options_.password.empty()) {
    ++replies;
    greeting += options_.user.empty() ? redis_command({"AUTH", options_.password})
                                      : redis_command({"AUTH", options_.user, options_.password});
  }
  if (replica) ++replies, greeting += redis_command({"READONLY"});
  std::vector<redis_reply> const got = made->exchange(greeting, replies, deadline);
  if (!options_.password.empty() && got.front()->type == REDIS_REPLY_ERROR) {
    throw lost_link(node + ": " + std::string(text_of(*got.front())));
  }
  link = std::move(made);
  return *link;
}

void redis_nodes::lose(std::string const& node) {
  links_.erase(node);
  silent_.insert(node);
}

/// Asks who is known or was named; those that did not answer last time, in their turn, when nobody else did.
bool redis_nodes::refresh(clock::time_point deadline, std::string& why) {
  std::vector<std::string> known;
  for (owner const& o : owners_) known.insert(known.end(), {o.primary, o.replica});
  known.insert(known.end(), options_.nodes.begin(), options_.nodes.end());
  std::ranges::stable_partition(known, [&](std::string const& node) { return !silent_.contains(node); });
  for (std::string const& node : known) {
    if (node.empty() || clock::now() >= deadline) continue;
    try {
      bool const whole = learn(node, std::min(deadline, clock::now() + options_.attempt));
      silent_.erase(node);
      if (whole) return true;
      why = node + ": not all slots are served";
    } catch (lost_link const& lost) {
      lose(node);
      why = lost.what();
    }
  }
  return false;
}

/// What one node says of all slots.
bool redis_nodes::learn(std::string const& node, clock::time_point deadline) {
  bool const replica = std::ranges::any_of(owners_, [&](owner const& o) { return o.replica == node; });
  redis_reply const said =
      std::move(link_to(node, replica, deadline).exchange(redis_command({"CLUSTER", "SLOTS"}), 1, deadline).front());
  if (said->type == REDIS_REPLY_ERROR) {
    std::string_view const text = text_of(*said);
    if (text.find("cluster support disabled") == std::string_view::npos) throw lost_link(node + ": " + std::string(text));
    owners_.assign(1, {node, {}});
    std::ranges::fill(owner_of_, std::uint16_t{0});
    return true;
  }
  if (said->type != REDIS_REPLY_ARRAY || said->elements == 0) return false;
  std::vector<owner> owners;
  std::vector<std::uint16_t> of(slots);
  for (std::size_t i = 0; i < said->elements; ++i) {
    redisReply const& range = *said->element[i];
    bool const shaped = range.type == REDIS_REPLY_ARRAY && range.elements >= 3 &&
                        range.element[0]->type == REDIS_REPLY_INTEGER && range.element[1]->type == REDIS_REPLY_INTEGER &&
                        range.element[0]->integer >= 0 && range.element[1]->integer < slots;
    if (!shaped) throw lost_link(node + ": its replies make no sense");
    owner found{address_of(*range.element[2], node), {}};
    if (range.elements > 3) found.replica = address_of(*range.element[3], node);
    auto const known = std::ranges::find(owners, found.primary, &owner::primary);
    auto const at = static_cast<std::uint16_t>(known - owners.begin());
    if (known == owners.end()) owners.push_back(found);
    for (long long slot = range.element[0]->integer; slot <= range.element[1]->integer; ++slot)
      of[static_cast<std::size_t>(slot)] = at;
  }
  owners_ = std::move(owners);
  owner_of_ = std::move(of);
  return true;
}

std::string redis_nodes::address_of(redisReply const& node, std::string const& asked) const {
  if (node.type != REDIS_REPLY_ARRAY || node.elements < 2 || node.element[1]->type != REDIS_REPLY_INTEGER) {
    throw lost_link(asked + ": its replies make no sense");
  }
  std::string host = node.element[0]->type == REDIS_REPLY_STRING ? std::string(text_of(*node.element[0])) : std::string();
  if (host.empty()) host = host_of(asked);
  return host + ":" + std::to_string(node.element[1]->integer);
}

}  // namespace kvpolicy::tiers
