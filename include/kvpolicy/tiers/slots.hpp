// The slots of an arena: which block each holds, and which must not be touched yet. Tiers with an arena share it.
#pragma once

#include <cstdlib>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvpolicy/error.hpp"
#include "kvpolicy/tiers/tier.hpp"

namespace kvpolicy::tiers {

/// Hashes a block key.
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

/// Tracks the slots: each is free, resident, or held by gets. Not thread-safe.
/// A block that is dropped or replaced while gets hold its slot frees the slot when the last of them ends.
class slot_table {
 public:
  using slot = std::int64_t;
  static constexpr slot none = -1;

  /// Makes a table of free slots.
  /// @param capacity  how many
  explicit slot_table(std::int64_t capacity) : slots_(static_cast<std::size_t>(capacity)) {
    free_.reserve(slots_.size());
    for (slot s = capacity - 1; s >= 0; --s) free_.push_back(s);
    index_.reserve(slots_.size());
  }

  std::int64_t capacity() const noexcept { return std::ssize(slots_); }
  std::int64_t free() const noexcept { return std::ssize(free_); }

  /// Returns the slot of a block, or none.
  /// @param key  the block
  slot find(block_key const& key) const {
    auto const found = index_.find(key);
    return found == index_.end() || found->second == none || slots_[at(found->second)].key != key ? none : found->second;
  }

  /// Takes a free slot, which no block has yet; returns none if all are used.
  slot take() noexcept {
    if (free_.empty()) return none;
    slot const taken = free_.back();
    free_.pop_back();
    return taken;
  }

  /// Makes room in the index for a block, so that publishing it can't fail. An exception changes nothing.
  /// @param key  the block
  void announce(block_key const& key) { index_.try_emplace(key, none); }
  /// Takes an announcement back, if the block was not published.
  /// @param key  the block
  void withdraw(block_key const& key) noexcept {
    if (auto const found = index_.find(key); found != index_.end() && found->second == none) index_.erase(found);
  }
  /// Gives an announced block a slot, in place of the slot that it had.
  /// @param key  the block
  /// @param s  a slot that was taken
  void publish(block_key const& key, slot s) noexcept {
    slot& place = index_.find(key)->second;
    if (place != none) retire(place);
    place = s;
    slots_[at(s)] = {.key = key, .holds = 0, .live = true};
  }

  /// Drops a block, if it is there.
  /// @param key  the block
  void drop(block_key const& key) {
    auto const found = index_.find(key);
    if (found == index_.end()) return;
    if (found->second != none) retire(found->second);
    index_.erase(found);
  }

  /// Holds a slot until release(), once for each call.
  /// @param s  the slot
  void hold(slot s) noexcept {
    if (slots_[at(s)].holds++ == 0) ++held_;
  }
  /// Ends one hold. Aborts the process if there was none: its block may have been overwritten.
  /// @param s  the slot
  void release(slot s) noexcept {
    state& it = slots_[at(s)];
    if (it.holds <= 0) std::abort();  // a block may have been overwritten while a get read it
    if (--it.holds > 0) return;
    --held_;
    if (!it.live) free_.push_back(s);
  }

  /// Counts slots. A held slot is in flight, even if its block was dropped.
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
