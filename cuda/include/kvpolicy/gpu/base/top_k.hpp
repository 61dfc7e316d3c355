// Exact top-k of a row in one block: a radix select for the threshold, then one ordered pass that writes indices ascending.
#pragma once

#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/gpu/base/radix.hpp"

namespace kvpolicy::gpu::detail {

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
