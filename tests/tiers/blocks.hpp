// What a block holds, by its key; and the tiers that the suites are instantiated for.
#pragma once

#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <string>
#include <vector>

#include "conformance/scratch_folder.hpp"
#include "kvpolicy/tiers/any_tier.hpp"
#include "kvpolicy/tiers/host.hpp"
#include "tiers/fake_tier.hpp"
#include "tiers/same_memory.hpp"
#ifdef KVPOLICY_TEST_DISK
#include "kvpolicy/tiers/disk.hpp"
#endif

namespace kvpolicy_test {

namespace tiers = kvpolicy::tiers;

#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
inline constexpr bool quick_build = true;
#else
inline constexpr bool quick_build = false;
#endif

/// A tier of somebody else's.
template <class Tier>
struct borrowed {
  Tier* tier;
  std::int64_t block_bytes() const { return tier->block_bytes(); }
  std::int64_t capacity() const { return tier->capacity(); }
  bool put(std::span<tiers::block_write const> writes) { return tier->put(writes); }
  tiers::ticket get(std::span<tiers::block_read const> reads) { return tier->get(reads); }
  tiers::status poll(tiers::ticket id) { return tier->poll(id); }
  tiers::status wait(tiers::ticket id, tiers::clock::time_point deadline) { return tier->wait(id, deadline); }
  void drop(std::span<tiers::block_key const> keys) { tier->drop(keys); }
  tiers::usage occupied() { return tier->occupied(); }
};
template <class Tier>
tiers::any_tier lend(Tier& tier) {
  return tiers::any_tier::of<borrowed<Tier>>(&tier);
}

/// A check that costs nothing where it holds.
inline void check(bool holds, char const* what) {
  if (!holds) FAIL(what);
}

/// Every byte follows from whose block it is, and which write of it.
inline void fill_block(tiers::block_key const& key, std::uint64_t version, std::span<std::byte> to) {
  std::uint64_t state = key.request * 0xbf58476d1ce4e5b9u + version;
  for (std::uint64_t const word :
       {static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.layer)), static_cast<std::uint64_t>(key.head) << 1,
        static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.position)), static_cast<std::uint64_t>(key.generation)}) {
    state = (state ^ word ^ state >> 31) * 0x94d049bb133111ebu;
  }
  for (std::size_t i = 0; i < to.size(); i += 8) {
    state += 0x9e3779b97f4a7c15u;
    std::uint64_t const word = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
    std::memcpy(to.data() + i, &word, std::min<std::size_t>(8, to.size() - i));
  }
}

inline std::vector<std::byte> block_of(tiers::block_key const& key, std::uint64_t version, std::int64_t bytes) {
  std::vector<std::byte> made(static_cast<std::size_t>(bytes));
  fill_block(key, version, made);
  return made;
}

inline bool holds_block(std::byte const* bytes, tiers::block_key const& key, std::uint64_t version,
                        std::vector<std::byte>& scratch) {
  fill_block(key, version, scratch);
  return std::memcmp(bytes, scratch.data(), scratch.size()) == 0;
}

inline constexpr std::byte untouched_byte{0xa5};
inline bool untouched(std::span<std::byte const> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == untouched_byte; });
}

inline tiers::clock::time_point soon() { return tiers::clock::now() + std::chrono::seconds(60); }

/// A put of one block; and a read of one, whose destination must be as it was where it is a miss.
template <class Tier>
bool put_one(Tier& t, tiers::block_key const& key, std::uint64_t version) {
  auto const bytes = block_of(key, version, t.block_bytes());
  tiers::block_write const write{key, bytes.data()};
  return t.put({&write, 1});
}
template <class Tier>
void drop_one(Tier& t, tiers::block_key const& key) {
  t.drop({&key, 1});
}
template <class Tier>
bool reads_as(Tier& t, tiers::block_key const& key, std::uint64_t version) {
  std::vector<std::byte> to(static_cast<std::size_t>(t.block_bytes()), untouched_byte);
  tiers::block_read const read{key, to.data()};
  auto const result = t.wait(t.get({&read, 1}), soon());
  return result == tiers::status::done && to == block_of(key, version, t.block_bytes());
}
template <class Tier>
bool is_miss(Tier& t, tiers::block_key const& key) {
  std::vector<std::byte> to(static_cast<std::size_t>(t.block_bytes()), untouched_byte);
  tiers::block_read const read{key, to.data()};
  return t.wait(t.get({&read, 1}), soon()) == tiers::status::missed && untouched(to);
}

template <class Tier>
bool adds_up(Tier& t) {
  tiers::usage const use = t.occupied();
  return use.free >= 0 && use.resident >= 0 && use.in_flight >= 0 && use.free + use.resident + use.in_flight == t.capacity();
}

/// How each tier is made: `tier` is what the suites use; `may_fail` where it loses what it could have kept, by intent.
struct of_same_memory {
  static constexpr bool may_fail = false;
  static constexpr std::int64_t weight = 1;  ///< how much less of the suites it runs
  same_memory tier;
  of_same_memory(std::int64_t bytes, std::int64_t capacity, std::uint64_t) : tier(bytes, capacity) {}
};
struct of_host {
  static constexpr bool may_fail = false;
  static constexpr std::int64_t weight = 1;
  tiers::host tier;  // that copies on its thread, or at once
  of_host(std::int64_t bytes, std::int64_t capacity, std::uint64_t seed)
      : tier(bytes, capacity, seed % 4 == 0 ? 256 << 10 : 0) {}
};
struct of_any_tier {
  static constexpr bool may_fail = false;
  static constexpr std::int64_t weight = 1;
  tiers::any_tier tier;
  of_any_tier(std::int64_t bytes, std::int64_t capacity, std::uint64_t)
      : tier(tiers::any_tier::of<tiers::host>(bytes, capacity)) {}
};
struct of_fake {
  static constexpr bool may_fail = false;
  static constexpr std::int64_t weight = 1;
  fake_tier tier;
  of_fake(std::int64_t bytes, std::int64_t capacity, std::uint64_t seed) : tier(bytes, capacity, {.seed = seed}) {}
};
struct of_failing_fake {
  static constexpr bool may_fail = true;
  static constexpr std::int64_t weight = 1;
  fake_tier tier;
  of_failing_fake(std::int64_t bytes, std::int64_t capacity, std::uint64_t seed)
      : tier(
            bytes, capacity,
            {.seed = seed, .most_polls = static_cast<std::int64_t>(seed % 9), .puts_fail_one_in = 8, .gets_missed_one_in = 8}) {
  }
};
#ifdef KVPOLICY_TEST_DISK
struct of_disk {
  static constexpr bool may_fail = false;
  static constexpr std::int64_t weight = 20;
  scratch_folder folder;
  tiers::disk tier;
  of_disk(std::int64_t bytes, std::int64_t capacity, std::uint64_t)
      : tier(folder.file("blocks"), bytes, capacity, {.sync = false}) {}
};
#endif

}  // namespace kvpolicy_test
