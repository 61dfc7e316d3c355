// Exact top-k of a row in one block: a radix select for the threshold, then one ordered pass that writes indices ascending.
#pragma once

#include "kvpolicy/gpu/rows.hpp"
#include "kvpolicy/primitive/top_k.hpp"

namespace kvpolicy::gpu {

KVPOLICY_KERNEL std::uint32_t key_of(float score) {
  if (score != score) return 0;
  auto const bits = __builtin_bit_cast(std::uint32_t, score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// What a selection of one row needs of shared memory.
template <class B>
struct radix_shared {
  typename B::template array<std::int32_t, 256> histogram;
  typename B::template array<std::int32_t, 4> found;  ///< digit, items still wanted
  typename B::template scan_storage<std::int32_t> scan;
  typename B::template scan_storage<std::int32_t> ties;
};

/// The largest key such that keys no smaller weigh at least what is wanted, and how much of those that equal it is wanted.
struct radix_threshold {
  std::uint32_t key = 0;
  std::int32_t ties = 0;
};

/// `each(visit)` calls visit(key, weight) for every key of this thread, as often as it is called. `wanted` is at least 1 and no
/// more than all of them weigh. Collective.
template <class B, class Each>
KVPOLICY_KERNEL radix_threshold select_threshold(B& block, radix_shared<B>& s, std::int32_t wanted, Each each) {
  std::uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (std::uint32_t d = block.thread(); d < 256; d += B::threads) s.histogram[d] = 0;
    block.sync();
    each([&](std::uint32_t key, std::int32_t weight) {
      if (shift == 24 || key >> (shift + 8) == prefix >> (shift + 8)) s.histogram.atomic_add((key >> shift) & 255u, weight);
    });
    block.sync();
    // Digits from the largest down: thread t has digits 255 - t and 255 - t - threads.
    std::int32_t higher = 0;
    for (std::uint32_t base = 0; base < 256; base += B::threads) {
      std::uint32_t const t = base + block.thread();
      std::int32_t count = 0;
      if (t < 256) count = s.histogram[255 - t];
      std::int32_t total = 0;
      std::int32_t const before = higher + block.exclusive_sum(s.scan, count, total);
      if (t < 256 && before < wanted && wanted <= before + count) {
        s.found[0] = static_cast<std::int32_t>(255 - t);
        s.found[1] = wanted - before;
      }
      higher += total;
      block.sync();
    }
    std::int32_t const digit = s.found[0];
    wanted = s.found[1];
    prefix |= static_cast<std::uint32_t>(digit) << shift;
    block.sync();
  }
  return {prefix, wanted};
}

/// indices(r, :) = [0, first), then the k[r] highest of row r's candidates [first, first + columns), ascending. A thread keeps
/// `Items` keys of a row in registers; longer rows are read again for each of the four digits.
template <int Items>
struct top_k_body {
  static constexpr unsigned threads = Items > 1 ? 512 : 1024;
  static constexpr char const* name = Items > 1 ? "top_k in registers" : "top_k";
  struct arguments {
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
  template <class B>
  struct shared {
    radix_shared<B> radix;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    unsigned const row = block.x();
    unsigned const number = row / static_cast<unsigned>(a.rows_of_number);
    auto const first = static_cast<std::int32_t>(a.first.of(block, number));
    auto const columns = static_cast<std::int32_t>(a.columns.of(block, number));
    auto k = static_cast<std::int32_t>(a.k.of(block, number));
    if (columns == 0 && a.keeps_empty) return;
    k = k < 0 ? 0 : k < columns ? k : columns;
    auto const scores = block.global(a.scores);
    auto const indices = block.global(a.indices);
    std::int64_t const from = row * a.score_stride + first;
    std::int64_t const to = row * a.index_stride + first;
    auto const thread = static_cast<std::int32_t>(block.thread());
    if (a.tokens.data != nullptr && thread == 0) block.global(a.tokens)[row] = (first + k) * a.unit_size;
    for (std::int32_t i = thread; i < first; i += B::threads) indices[to - first + i] = i;
    if (k == 0) return;
    if (k == columns) {
      for (std::int32_t i = thread; i < columns; i += B::threads) indices[to + i] = first + i;
      return;
    }
    // Thread t has items [t Items, (t + 1) Items) of each stretch of threads * Items, so that scans follow the order of
    // indices.
    constexpr std::int32_t stretch = B::threads * Items;
    std::uint32_t keys[Items];
    auto const read = [&](std::int32_t base) {
      KVPOLICY_UNROLL
      for (int i = 0; i < Items; ++i) {
        std::int32_t const c = base + thread * Items + i;
        keys[i] = 0;
        if (c < columns) {
          float const score = scores[from + c];
          keys[i] = key_of(score);
        }
      }
    };
    if constexpr (Items > 1) read(0);
    radix_threshold const threshold = select_threshold(block, s.radix, k, [&](auto visit) {
      for (std::int32_t base = 0; base < columns; base += stretch) {
        if constexpr (Items == 1) read(base);
        KVPOLICY_UNROLL
        for (int i = 0; i < Items; ++i) {
          if (base + thread * Items + i < columns) visit(keys[i], 1);
        }
      }
    });
    std::int32_t written = 0;
    std::int32_t ties_before = 0;
    for (std::int32_t base = 0; base < columns; base += stretch) {
      if constexpr (Items == 1) read(base);
      std::int32_t higher = 0;
      std::int32_t equal = 0;
      KVPOLICY_UNROLL
      for (int i = 0; i < Items; ++i) {
        if (base + thread * Items + i >= columns) continue;
        higher += keys[i] > threshold.key ? 1 : 0;
        equal += keys[i] == threshold.key ? 1 : 0;
      }
      std::int32_t all_equal = 0;
      std::int32_t ties = ties_before + block.exclusive_sum(s.radix.ties, equal, all_equal);
      std::int32_t const left = threshold.ties - ties;
      std::int32_t const taken = higher + (left <= 0 ? 0 : left < equal ? left : equal);
      std::int32_t all_taken = 0;
      std::int32_t at = written + block.exclusive_sum(s.radix.scan, taken, all_taken);
      KVPOLICY_UNROLL
      for (int i = 0; i < Items; ++i) {
        std::int32_t const c = base + thread * Items + i;
        if (c >= columns) continue;
        bool const tie = keys[i] == threshold.key;
        if (keys[i] > threshold.key || (tie && ties < threshold.ties)) indices[to + at++] = first + c;
        ties += tie ? 1 : 0;
      }
      written += all_taken;
      ties_before += all_equal;
      block.sync();
    }
  }
};

}  // namespace kvpolicy::gpu
