// The tier concept, for rows that live outside memory, and the identity of a tier's blocks.
#pragma once

#include <chrono>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvpolicy::tiers {

/// Identifies a block. Every read checks it: a block of another request, layer, head, position or generation is a miss.
struct block_key {
  std::uint64_t request = 0;
  std::int32_t layer = 0;
  std::int32_t head = 0;
  std::int32_t position = 0;     ///< of the token in the sequence
  std::uint32_t generation = 0;  ///< grows when a request's tokens are replaced

  auto operator<=>(block_key const&) const = default;
};

/// One block to write.
struct block_write {
  block_key key{};
  std::byte const* from = nullptr;  ///< `block_bytes()` bytes
};
/// One block to read.
struct block_read {
  block_key key{};
  std::byte* to = nullptr;  ///< `block_bytes()` bytes
};

/// A get that has begun; 0: none.
using ticket = std::uint64_t;

/// How far a get is.
enum class status : std::uint8_t {
  pending,
  done,   ///< every block is at its destination, bit by bit
  missed  ///< a block is absent, damaged or unreadable: no destination was written
};

/// Slots of a tier, or its blocks if it has no slots. They always add up to the capacity.
struct usage {
  std::int64_t free = 0;
  std::int64_t resident = 0;
  std::int64_t in_flight = 0;  ///< held by a get that has not ended
};

using clock = std::chrono::steady_clock;

/// Keeps blocks of equal size.
/// Requires: `block_bytes()`; `capacity()`, in blocks; `put(writes)`, false and without effect if there is no room or the
/// medium fails; `get(reads)`, which begins a scatter-gather read and returns its ticket; `poll(ticket)`;
/// `wait(ticket, deadline)`, which returns pending if the deadline passes first; `drop(keys)`, some of which may be absent;
/// `occupied()`.
/// Semantics: a put is all or nothing, and replaces the block of a key that exists. Its sources may change when it returns. A
/// block that it acknowledged stays until it is dropped. A get is all or nothing, and reads each block as it was when the get
/// began; until the get has ended, its destinations belong to the tier and its slots are not reused, even after a drop. Gets
/// end in any order. The end of a ticket is reported once. Calls come from one thread at a time. A tier may have
/// `get(reads, waits)`; where `waits` is false the caller has other work meanwhile, and the tier leaves it its thread.
/// Model: tiers::host. Not a model: a cache that forgets what it acknowledged.
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

/// Returns a tier's name for messages.
/// @param t  the tier
/// @return the result of its `describe()`, or "the tier" if it has none
template <tier_like Tier>
std::string describe(Tier const& t) {
  if constexpr (requires { t.describe(); }) return t.describe();
  else return "the tier";
}

}  // namespace kvpolicy::tiers
