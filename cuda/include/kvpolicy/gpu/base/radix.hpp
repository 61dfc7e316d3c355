// The highest of many keys by a radix select, and what is kept of them in order.
#pragma once

#include "kvpolicy/gpu/base/rows.hpp"
#include "kvpolicy/primitive/top_k.hpp"

namespace kvpolicy::gpu::detail {

KVPOLICY_KERNEL std::uint32_t sortable_key(float score) {
  if (score != score) return 0;
  auto const bits = __builtin_bit_cast(std::uint32_t, score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The digits of keys: the first two of 11 bits, the last of 10. Of scores that lie close together the first has several
/// values, so that not all threads add to one counter.
struct radix {
  static constexpr int values = 2048;
  static constexpr int of_group = 128;  ///< values that a warp adds up at once
  static constexpr int groups = values / of_group;
  static constexpr int first_shift = 21;  ///< of the first digit
};

/// What a selection of one row needs of shared memory.
template <class B>
struct radix_shared {
  typename B::template array<std::int32_t, radix::values> histogram;
  typename B::template array<std::int32_t, radix::groups> of_groups;
  typename B::template array<std::int32_t, 2> found;  ///< digit, items still wanted
  typename B::template scan_storage<std::int32_t> scan;
  typename B::template scan_storage<std::int32_t> ties;
};

/// The sum of the values of all lanes before this one, and its own. Collective.
template <class Tile>
KVPOLICY_KERNEL std::int32_t inclusive_sum(Tile const& tile, std::int32_t value) {
  KVPOLICY_UNROLL
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    std::int32_t const other = tile.shfl(value, tile.lane() < distance ? 0 : tile.lane() - distance);
    if (tile.lane() >= distance) value += other;
  }
  return value;
}

/// The largest key such that keys no smaller weigh at least what is wanted, and how much of those that equal it is wanted.
struct radix_threshold {
  std::uint32_t key = 0;
  std::int32_t ties = 0;
};

/// `each(visit)` calls visit(key, weight) for every key of this thread, as often as it is called. `wanted` is at least 1 and no
/// more than all of them weigh; only keys whose bits from `high` on are those of `prefix` count. Collective.
template <class B, class Each>
KVPOLICY_KERNEL radix_threshold select_threshold(B& block, radix_shared<B>& s, std::int32_t wanted, Each each,
                                                 std::uint32_t prefix = 0, int high = 32) {
  auto const tile = block.tile();
  auto const lane = static_cast<std::int32_t>(tile.lane());
  while (high > 0) {
    int const shift = high > 10 ? high - 11 : 0;
    for (std::uint32_t d = block.thread(); d < radix::values; d += B::threads) s.histogram[d] = 0;
    block.sync();
    each([&](std::uint32_t key, std::int32_t weight) {
      if (high == 32 || key >> high == prefix >> high) s.histogram.atomic_add((key >> shift) & (radix::values - 1), weight);
    });
    block.sync();
    // From the largest value down: the sum of each group of values, then the group that holds the wanted one, then that one.
    for (auto group = static_cast<int>(tile.index()); group < radix::groups; group += static_cast<int>(B::threads / 32)) {
      std::int32_t sum = 0;
      KVPOLICY_UNROLL
      for (int i = 0; i < radix::of_group; i += 32) {
        std::int32_t const count = s.histogram[radix::values - 1 - group * radix::of_group - i - lane];
        sum += count;
      }
      KVPOLICY_UNROLL
      for (unsigned mask = 1; mask < 32; mask *= 2) sum += tile.shfl_xor(sum, mask);
      if (lane == 0) s.of_groups[group] = sum;
    }
    block.sync();
    if (tile.index() == 0) {
      std::int32_t sum = 0;
      if (lane < radix::groups) sum = s.of_groups[lane];
      std::int32_t const behind = inclusive_sum(tile, sum);
      auto const group = static_cast<unsigned>(__builtin_popcount(tile.ballot(lane < radix::groups && behind < wanted)));
      std::int32_t before = tile.shfl(behind - sum, group);
      std::int32_t const largest = radix::values - 1 - static_cast<std::int32_t>(group) * radix::of_group - 4 * lane;
      std::int32_t counts[4];
      std::int32_t mine = 0;
      KVPOLICY_UNROLL
      for (int i = 0; i < 4; ++i) {
        std::int32_t const count = s.histogram[largest - i];
        counts[i] = count;
        mine += count;
      }
      before += inclusive_sum(tile, mine) - mine;
      KVPOLICY_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (before < wanted && wanted <= before + counts[i]) {
          s.found[0] = largest - i;
          s.found[1] = wanted - before;
        }
        before += counts[i];
      }
    }
    block.sync();
    std::int32_t const digit = s.found[0];
    wanted = s.found[1];
    prefix |= static_cast<std::uint32_t>(digit) << shift;
    high = shift;
  }
  return {prefix, wanted};
}

/// One of the items that keep_in_order() goes through.
struct ordered_item {
  std::int32_t value = 0;  ///< what is written of it
  bool kept = false;       ///< whatever its key
  bool candidate = false;  ///< kept by its key
  std::uint32_t key = 0;
};

/// Calls `write(value, nth)` for the items of [0, count) that are kept: those that are in any case, and of the candidates those
/// above the threshold, with the first ones at it. What it writes may lie where earlier items were read. Collective.
/// @return how many are kept
template <class B, class Item, class Write>
KVPOLICY_KERNEL std::int32_t keep_in_order(B& block, radix_shared<B>& s, std::int32_t count, radix_threshold const& threshold,
                                           Item item_at, Write write) {
  std::int32_t written = 0;
  std::int32_t ties_before = 0;
  for (std::int32_t base = 0; base < count; base += B::threads) {
    std::int32_t const i = base + static_cast<std::int32_t>(block.thread());
    ordered_item mine;
    if (i < count) mine = item_at(i);
    bool const tie = mine.candidate && mine.key == threshold.key;
    std::int32_t all_ties = 0;
    std::int32_t const ties = ties_before + block.exclusive_sum(s.ties, tie ? 1 : 0, all_ties);
    bool const kept = mine.kept || (mine.candidate && mine.key > threshold.key) || (tie && ties < threshold.ties);
    std::int32_t all = 0;
    std::int32_t const nth = written + block.exclusive_sum(s.scan, kept ? 1 : 0, all);
    block.sync();  // this stretch is read; what is written lies before what is still to be read
    if (kept) write(mine.value, nth);
    written += all;
    ties_before += all_ties;
    block.sync();
  }
  return written;
}

}  // namespace kvpolicy::gpu::detail
