// Exact top-k of a row in one block: a radix select for the threshold, then one ordered pass that writes indices ascending.
#pragma once

#include "kvpolicy/gpu/base/device.hpp"
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
/// more than all of them weigh. Collective.
template <class B, class Each>
KVPOLICY_KERNEL radix_threshold select_threshold(B& block, radix_shared<B>& s, std::int32_t wanted, Each each) {
  auto const tile = block.tile();
  auto const lane = static_cast<std::int32_t>(tile.lane());
  std::uint32_t prefix = 0;
  for (int high = 32; high > 0;) {
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

/// What a top-k is given: candidates [first, first + columns) of each row.
struct top_k_arguments {
  buffer<float const> scores;
  std::int64_t score_stride = 0;
  per_sequence first;  ///< these three are of every `rows_of_number` rows
  per_sequence columns;
  per_sequence k;
  std::int32_t rows_of_number = 1;
  buffer<std::int32_t> indices;
  std::int64_t index_stride = 0;
  buffer<std::int32_t> tokens;  ///< of each row: `unit_size` for every index that is written; or none
  std::int32_t unit_size = 1;
  bool keeps_empty = false;  ///< a row without candidates is left as it is
};

/// indices(r, :) = [0, first), then the k[r] highest of row r's candidates, ascending. A row's keys stay in registers if they
/// fit; those of longer rows are read again for each of the three digits.
template <bool InRegisters>
struct top_k_body {
  static constexpr unsigned threads = 512;
  static constexpr char const* name = InRegisters ? "top_k in registers" : "top_k";
  static constexpr int warps = threads / 32;
  static constexpr int items = 32;                          ///< keys of a thread at a time
  static constexpr std::int32_t stretch = threads * items;  ///< keys of the block at a time
  using arguments = top_k_arguments;
  template <class B>
  struct shared {
    radix_shared<B> radix;
    typename B::template array<std::int32_t, warps * items> counts;
  };
  static_assert(warps * items == threads && stretch <= 1 << 15);  // a thread scans one of the counts, two numbers in each

  /// A row's candidates, and how many of them are wanted.
  struct row_of_scores {
    std::int32_t first;
    std::int32_t columns;
    std::int32_t k;
    std::int64_t from;
    std::int64_t to;

    template <class B>
    KVPOLICY_KERNEL row_of_scores(B& block, arguments const& a) {
      unsigned const number = block.x() / static_cast<unsigned>(a.rows_of_number);
      first = static_cast<std::int32_t>(a.first.of(block, number));
      columns = static_cast<std::int32_t>(a.columns.of(block, number));
      auto const wanted = static_cast<std::int32_t>(a.k.of(block, number));
      k = wanted < 0 ? 0 : wanted < columns ? wanted : columns;
      from = block.x() * a.score_stride + first;
      to = block.x() * a.index_stride + first;
    }

    /// Writes what no score decides. Returns whether scores decide anything.
    template <class B>
    KVPOLICY_KERNEL bool begin(B& block, arguments const& a) const {
      if (columns == 0 && a.keeps_empty) return false;
      auto const indices = block.global(a.indices);
      auto const thread = static_cast<std::int32_t>(block.thread());
      if (a.tokens.data != nullptr && thread == 0) block.global(a.tokens)[block.x()] = (first + k) * a.unit_size;
      for (std::int32_t i = thread; i < first; i += B::threads) indices[to - first + i] = i;
      bool const all = k == columns;
      for (std::int32_t i = thread; all && i < columns; i += B::threads) indices[to + i] = first + i;
      return k > 0 && !all;
    }
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    row_of_scores const row(block, a);
    if (!row.begin(block, a)) return;
    std::int32_t const columns = row.columns;
    auto const scores = block.global(a.scores);
    auto const indices = block.global(a.indices);
    auto const thread = static_cast<std::int32_t>(block.thread());
    // Of a stretch, thread t has every 512th candidate from t on, so that a warp's loads are of neighbours. Behind a row's end
    // keys are 0, as of NaN: these come last, and ties go to what is before them.
    std::uint32_t keys[items];
    auto const read = [&](std::int32_t base) {
      float score[items];
      KVPOLICY_UNROLL
      for (int i = 0; i < items; ++i) {  // all are on their way before one is looked at
        std::int32_t const c = base + i * static_cast<std::int32_t>(B::threads) + thread;
        score[i] = scores[row.from + (c < columns ? c : columns - 1)];
      }
      KVPOLICY_UNROLL
      for (int i = 0; i < items; ++i) {
        keys[i] = base + i * static_cast<std::int32_t>(B::threads) + thread < columns ? sortable_key(score[i]) : 0;
      }
    };
    auto const each_item = [&](std::int32_t base, auto visit) {
      KVPOLICY_UNROLL
      for (int i = 0; i < items; ++i) {
        if (base + i * static_cast<std::int32_t>(B::threads) < columns) visit(i);
      }
    };
    if constexpr (InRegisters) read(0);
    radix_threshold const threshold = select_threshold(block, s.radix, row.k, [&](auto visit) {
      for (std::int32_t base = 0; base < columns; base += stretch) {
        if constexpr (!InRegisters) read(base);
        each_item(base, [&](int i) { visit(keys[i], 1); });
      }
    });
    // How many are higher and how many are equal, of each warp's every item; then where each of them goes.
    auto const tile = block.tile();
    auto const warp = static_cast<int>(tile.index());
    std::uint32_t const lower_lanes = (1u << tile.lane()) - 1;
    std::int32_t higher_before = 0;
    std::int32_t ties_before = 0;
    for (std::int32_t base = 0; base < columns; base += stretch) {
      if constexpr (!InRegisters) read(base);
      s.counts[thread] = 0;
      block.sync();
      each_item(base, [&](int i) {
        std::uint32_t const any = tile.ballot(keys[i] >= threshold.key);
        if (any == 0) return;
        std::uint32_t const equal = tile.ballot(keys[i] == threshold.key);
        if (tile.lane() == 0) s.counts[i * warps + warp] = __builtin_popcount(any & ~equal) << 16 | __builtin_popcount(equal);
      });
      block.sync();
      std::int32_t const mine = s.counts[thread];
      std::int32_t all = 0;
      s.counts[thread] = block.exclusive_sum(s.radix.scan, mine, all);
      block.sync();
      each_item(base, [&](int i) {
        std::uint32_t const any = tile.ballot(keys[i] >= threshold.key);
        if (any == 0) return;
        std::uint32_t const equal = tile.ballot(keys[i] == threshold.key);
        std::int32_t const before = s.counts[i * warps + warp];
        std::int32_t const ties = ties_before + (before & 0xffff) + __builtin_popcount(equal & lower_lanes);
        std::int32_t const at = higher_before + (before >> 16) + __builtin_popcount(any & ~equal & lower_lanes) +
                                (ties < threshold.ties ? ties : threshold.ties);
        if (keys[i] > threshold.key || (keys[i] == threshold.key && ties < threshold.ties)) {
          indices[row.to + at] = row.first + base + i * static_cast<std::int32_t>(B::threads) + thread;
        }
      });
      higher_before += all >> 16;
      ties_before += all & 0xffff;
      block.sync();
    }
  }
};

/// `max_columns` bounds every row's length.
template <device D>
void launch_top_k(D& device, top_k_arguments const& a, std::int64_t rows, std::int64_t max_columns) {
  if (max_columns <= top_k_body<true>::stretch) device.template launch<top_k_body<true>>({rows, 1, 1}, a);
  else device.template launch<top_k_body<false>>({rows, 1, 1}, a);
}

}  // namespace kvpolicy::gpu::detail
