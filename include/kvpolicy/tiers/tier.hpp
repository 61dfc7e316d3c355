// Where rows live that are not resident: the tier concept, and the identity of every block in one.
#pragma once

#include <chrono>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvpolicy::tiers {

/// Whose block it is. Checked on every read: a block of another request, layer, head, position or generation is a miss.
struct block_key {
  std::uint64_t request = 0;
  std::int32_t layer = 0;
  std::int32_t head = 0;
  std::int32_t position = 0;
  std::uint32_t generation = 0;  ///< goes up when a request's tokens are replaced

  auto operator<=>(block_key const&) const = default;
};

/// One block to write, or to read: `block_bytes()` bytes each.
struct block_write {
  block_key key{};
  std::byte const* from = nullptr;
};
struct block_read {
  block_key key{};
  std::byte* to = nullptr;
};

/// A get that was begun; 0 is none.
using ticket = std::uint64_t;

enum class status : std::uint8_t {
  pending,
  done,   ///< every block is where it was wanted, bit by bit
  missed  ///< at least one block is not there, or damaged, or could not be read: nothing was written
};

/// Slots, or blocks where there are no slots. Their sum is the capacity, always.
struct usage {
  std::int64_t free = 0;
  std::int64_t resident = 0;
  std::int64_t in_flight = 0;  ///< held by a get that has not ended
};

using clock = std::chrono::steady_clock;

/// Keeps blocks of equal size.
/// Requires: `block_bytes()`, `capacity()` (blocks); `put(writes)`, all or nothing: false, and nothing changed, where there is
/// no room or the medium fails; what is acknowledged stays until dropped; a key that is there is replaced. `get(reads)` begins
/// a scatter-gather read and returns its ticket; `poll(ticket)`; `wait(ticket, deadline)`, pending if that passes first; a
/// ticket that ended is told once. `drop(keys)`, which need not be there; `occupied()`. Semantics: sources are free again when
/// put returns; destinations belong to the tier until their get has ended. A get is all or nothing, and sees each block as put
/// before it began. Slots that a get holds are not reused before it ends, drop or not. Gets end in any order. Called from one
/// thread at a time. Model: tiers::host. Not a model: a cache that forgets what it acknowledged.
template <class T>
concept tier_like = requires(T& t, std::span<block_write const> writes, std::span<block_read const> reads, ticket id,
                             clock::time_point deadline, std::span<block_key const> keys) {
  { t.block_bytes() } -> std::convertible_to<std::int64_t>;
  { t.capacity() } -> std::convertible_to<std::int64_t>;
  { t.put(writes) } -> std::same_as<bool>;
  { t.get(reads) } -> std::same_as<ticket>;
  { t.poll(id) } -> std::same_as<status>;
  { t.wait(id, deadline) } -> std::same_as<status>;
  t.drop(keys);
  { t.occupied() } -> std::same_as<usage>;
};

/// A tier in a message: as its `describe()` says, if it has one.
template <tier_like Tier>
std::string describe(Tier const& t) {
  if constexpr (requires { t.describe(); }) return t.describe();
  else return "the tier";
}

}  // namespace kvpolicy::tiers
