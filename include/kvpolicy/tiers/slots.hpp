// The slots of an arena: which block is in which, and which may not be touched yet. Shared by tiers that have an arena.
#pragma once

#include <cstdlib>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvpolicy/error.hpp"
#include "kvpolicy/tiers/tier.hpp"

namespace kvpolicy::tiers {

struct block_key_hash {
  std::size_t operator()(block_key const& key) const noexcept {
    std::uint64_t hash = 0;
    for (std::uint64_t const word :
         {key.request,
          static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.layer)) << 32 | static_cast<std::uint32_t>(key.head),
          static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.position)) << 32 | key.generation}) {
      hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
    return static_cast<std::size_t>(hash);
  }
};

/// Each slot is free, resident, or held by gets; what is dropped or replaced while it is held becomes free when the last of
/// them ends. Not thread-safe.
class slot_table {
 public:
  using slot = std::int64_t;
  static constexpr slot none = -1;

  explicit slot_table(std::int64_t capacity) : slots_(static_cast<std::size_t>(capacity)) {
    free_.reserve(slots_.size());
    for (slot s = capacity - 1; s >= 0; --s) free_.push_back(s);
    index_.reserve(slots_.size());
  }

  std::int64_t capacity() const noexcept { return std::ssize(slots_); }
  std::int64_t free() const noexcept { return std::ssize(free_); }

  slot find(block_key const& key) const {
    auto const found = index_.find(key);
    return found == index_.end() || found->second == none || slots_[at(found->second)].key != key ? none : found->second;
  }

  /// A free slot, for nobody yet; none where there is none.
  slot take() noexcept {
    if (free_.empty()) return none;
    slot const taken = free_.back();
    free_.pop_back();
    return taken;
  }
  /// A slot that was taken and is not used after all.
  void give_back(slot s) noexcept { free_.push_back(s); }

  /// Makes room in the index for a block, so that publishing it can't fail; may throw, and then nothing changed.
  void announce(block_key const& key) { index_.try_emplace(key, none); }
  /// Takes that back, where the block was not published.
  void withdraw(block_key const& key) noexcept {
    if (auto const found = index_.find(key); found != index_.end() && found->second == none) index_.erase(found);
  }
  /// The taken slot holds this announced block now, in place of any other that did.
  void publish(block_key const& key, slot s) noexcept {
    slot& place = index_.find(key)->second;
    if (place != none) retire(place);
    place = s;
    slots_[at(s)] = {.key = key, .holds = 0, .live = true};
  }

  void drop(block_key const& key) {
    auto const found = index_.find(key);
    if (found == index_.end()) return;
    if (found->second != none) retire(found->second);
    index_.erase(found);
  }

  void hold(slot s) noexcept {
    if (slots_[at(s)].holds++ == 0) ++held_;
  }
  void release(slot s) noexcept {
    state& it = slots_[at(s)];
    if (it.holds <= 0) std::abort();  // a count below zero means that somebody's block was reused: stop here
    if (--it.holds > 0) return;
    --held_;
    if (!it.live) free_.push_back(s);
  }

  /// In flight are the slots that are held, whether their block is still wanted or not.
  usage occupied() const noexcept { return {free(), capacity() - free() - held_, held_}; }

 private:
  struct state {
    block_key key{};
    std::int32_t holds = 0;
    bool live = false;
  };
  static std::size_t at(slot s) noexcept { return static_cast<std::size_t>(s); }

  void retire(slot s) noexcept {
    state& it = slots_[at(s)];
    it.live = false;
    if (it.holds == 0) free_.push_back(s);
  }

  std::vector<state> slots_;
  std::vector<slot> free_;
  std::unordered_map<block_key, slot, block_key_hash> index_;
  std::int64_t held_ = 0;
};

}  // namespace kvpolicy::tiers
