// Which of a block's candidates are kept by their scores, in their order.
#pragma once

#include "kvpolicy/gpu/base/radix.hpp"

namespace kvpolicy::gpu::detail {

/// Keys of a block's candidates, and which of them are kept. They stay in registers if they fit; more are read again for each
/// digit.
struct ranked_keys {
  static constexpr int threads = 512;
  static constexpr int warps = threads / 32;
  static constexpr int items = 32;                                ///< keys of a thread at a time
  static constexpr std::int32_t stretch = threads * items;        ///< keys of the block at a time
  static_assert(warps * items == threads && stretch <= 1 << 15);  // a thread scans one of the counts, two numbers in each

  template <class B>
  struct shared {
    radix_shared<B> radix;
    typename B::template array<std::int32_t, warps * items> counts;
  };

  /// `threshold_of(each)` is the threshold of the keys that each(visit) visits; put(place, c) is called for each candidate c
  /// that it keeps. A thread has at most `Items` keys at a time. Collective.
  template <int Items = items, class B, class Score, class Threshold, class Put>
  KVPOLICY_KERNEL static void keep(B& block, shared<B>& s, std::int32_t count, Score score_of, Threshold threshold_of,
                                   Put put) {
    auto const thread = static_cast<std::int32_t>(block.thread());
    // Of a stretch, thread t has every 512th candidate from t on, so that a warp's loads are of neighbours. Behind the end keys
    // are 0, as of NaN: these come last, and ties go to what is before them.
    std::uint32_t keys[Items];
    constexpr std::int32_t at_once = threads * Items;
    auto const each_item = [&](std::int32_t base, auto visit) {
      KVPOLICY_UNROLL
      for (int i = 0; i < Items; ++i) {
        if (base + i * threads < count) visit(i);
      }
    };
    auto const read = [&](std::int32_t base) {
      float score[Items];
      KVPOLICY_UNROLL
      for (int i = 0; i < Items; ++i) {  // all are on their way before one is looked at
        std::int32_t const c = base + i * threads + thread;
        score[i] = score_of(c < count ? c : count - 1);
      }
      KVPOLICY_UNROLL
      for (int i = 0; i < Items; ++i) keys[i] = base + i * threads + thread < count ? sortable_key(score[i]) : 0;
    };
    bool const in_registers = count <= at_once;
    if (in_registers) read(0);
    radix_threshold const threshold = threshold_of([&](auto visit) {
      for (std::int32_t base = 0; base < count; base += at_once) {
        if (!in_registers) read(base);
        each_item(base, [&](int i) { visit(keys[i], 1); });
      }
    });
    // How many are higher and how many are equal, of each warp's every item; then where each of them goes.
    auto const tile = block.tile();
    auto const warp = static_cast<int>(tile.index());
    std::uint32_t const lower_lanes = (1u << tile.lane()) - 1;
    std::int32_t higher_before = 0;
    std::int32_t ties_before = 0;
    for (std::int32_t base = 0; base < count; base += at_once) {
      if (!in_registers) read(base);
      auto const each_above = [&](auto visit) {  // visit(item, lanes that are higher, lanes that are equal)
        each_item(base, [&](int i) {
          std::uint32_t const any = tile.ballot(keys[i] >= threshold.key);
          if (any == 0) return;
          std::uint32_t const equal = tile.ballot(keys[i] == threshold.key);
          visit(i, any & ~equal, equal);
        });
      };
      s.counts[thread] = 0;
      block.sync();
      each_above([&](int i, std::uint32_t higher, std::uint32_t equal) {
        if (tile.lane() == 0) s.counts[i * warps + warp] = __builtin_popcount(higher) << 16 | __builtin_popcount(equal);
      });
      block.sync();
      std::int32_t const mine = s.counts[thread];
      std::int32_t all = 0;
      s.counts[thread] = block.exclusive_sum(s.radix.scan, mine, all);
      block.sync();
      each_above([&](int i, std::uint32_t higher, std::uint32_t equal) {
        std::int32_t const before = s.counts[i * warps + warp];
        std::int32_t const ties = ties_before + (before & 0xffff) + __builtin_popcount(equal & lower_lanes);
        std::int32_t const at = higher_before + (before >> 16) + __builtin_popcount(higher & lower_lanes) +
                                (ties < threshold.ties ? ties : threshold.ties);
        if (keys[i] > threshold.key || (keys[i] == threshold.key && ties < threshold.ties))
          put(at, base + i * threads + thread);
      });
      higher_before += all >> 16;
      ties_before += all & 0xffff;
      block.sync();
    }
  }
};

}  // namespace kvpolicy::gpu::detail
