// Exact top-k of rows: a radix select for the threshold, then one ordered pass that writes indices ascending. A block has a
// row, or a part of a long one, whose best are then candidates of the row's.
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
  bool keeps_empty = false;     ///< a row without candidates is left as it is
  std::int32_t parts = 1;       ///< blocks that share a row
  buffer<std::int32_t> best{};  ///< `[rows, best_stride]`: the best of each part, if there are several
  std::int64_t best_stride = 0;
  buffer<std::int32_t> counters{};  ///< `[rows]` zeros, likewise
};

/// indices(r, :) = [0, first), then the k[r] highest of row r's candidates, ascending. A block's keys stay in registers if they
/// fit; more are read again for each of the three digits. Blocks that share a row list the best of its parts, and the last of
/// them ranks these.
template <bool InParts>
struct top_k_body {
  static constexpr unsigned threads = 512;
  static constexpr char const* name = InParts ? "top_k in parts" : "top_k";
  static constexpr int warps = threads / 32;
  static constexpr int items = 32;                          ///< keys of a thread at a time
  static constexpr std::int32_t stretch = threads * items;  ///< keys of the block at a time
  using arguments = top_k_arguments;
  template <class B>
  struct shared {
    radix_shared<B> radix;
    typename B::template array<std::int32_t, warps * items> counts;
    typename B::last_storage last;
  };
  static_assert(warps * items == threads && stretch <= 1 << 15);  // a thread scans one of the counts, two numbers in each

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    if constexpr (InParts) {
      bool const none = candidates<row>(block, a).none;
      if (none && a.keeps_empty) return;
      rank<part>(block, s, a);
      if (block.last_of(s.last, a.counters, block.x(), a.parts)) rank<best>(block, s, a);
    } else {
      rank<row>(block, s, a);
    }
  }

 private:
  enum ranked { row, part, best };  ///< a row's candidates; a part of them; or what was listed as the best of each part

  /// A block's candidates, and how many of them are wanted.
  template <ranked What>
  struct candidates {
    std::int64_t nth;    ///< row
    std::int32_t first;  ///< of the row
    std::int32_t columns;
    std::int32_t k;
    std::int32_t begin = 0;  ///< of the part: its first column
    bool none;               ///< whether the row has no candidates
    std::int64_t from;       ///< of the scores
    std::int64_t to;         ///< where indices go

    template <class B>
    KVPOLICY_KERNEL candidates(B& block, arguments const& a) : nth(block.x()) {
      auto const number = static_cast<unsigned>(nth / a.rows_of_number);
      first = static_cast<std::int32_t>(a.first.of(block, number));
      columns = static_cast<std::int32_t>(a.columns.of(block, number));
      none = columns == 0;
      auto const wanted = static_cast<std::int32_t>(a.k.of(block, number));
      k = wanted < 0 ? 0 : wanted < columns ? wanted : columns;
      from = nth * a.score_stride + first;
      to = nth * a.index_stride + first;
      std::int32_t const of_part = k < stretch ? k : stretch;
      if constexpr (What == part) {
        begin = static_cast<std::int32_t>(block.y()) * stretch;
        columns = columns - begin < stretch ? columns - begin : stretch;
        k = columns < of_part ? columns : of_part;
        from += begin;
        to = nth * a.best_stride + block.y() * of_part;
      } else if constexpr (What == best) {
        std::int32_t const whole = columns / stretch;
        std::int32_t const rest = columns - whole * stretch;
        columns = whole * of_part + (rest < of_part ? rest : of_part);
      }
    }

    /// Writes what no score decides. Returns whether scores decide anything.
    template <class B>
    KVPOLICY_KERNEL bool begins(B& block, arguments const& a) const {
      if (What == part ? columns <= 0 : none && a.keeps_empty) return false;
      auto const thread = static_cast<std::int32_t>(block.thread());
      if constexpr (What != part) {
        auto const indices = block.global(a.indices);
        if (a.tokens.data != nullptr && thread == 0) block.global(a.tokens)[nth] = (first + k) * a.unit_size;
        for (std::int32_t i = thread; i < first; i += B::threads) indices[to - first + i] = i;
      }
      for (std::int32_t i = thread; k == columns && i < columns; i += B::threads) put(block, a, i, i);
      return k > 0 && k < columns;
    }
    /// The score of a candidate.
    template <class B>
    KVPOLICY_KERNEL float score(B& block, arguments const& a, std::int32_t c) const {
      return block.global(a.scores)[from + column(block, a, c)];
    }
    /// Writes that what was chosen at a place is candidate c.
    template <class B>
    KVPOLICY_KERNEL void put(B& block, arguments const& a, std::int32_t place, std::int32_t c) const {
      if constexpr (What == part) block.global(a.best)[to + place] = begin + c;
      else block.global(a.indices)[to + place] = first + column(block, a, c);
    }

   private:
    template <class B>
    KVPOLICY_KERNEL std::int32_t column(B& block, arguments const& a, std::int32_t c) const {
      if constexpr (What == best) {
        std::int32_t const named = block.global(a.best)[nth * a.best_stride + c];
        return named;
      } else {
        return c;
      }
    }
  };

  template <ranked What, class B>
  KVPOLICY_KERNEL static void rank(B& block, shared<B>& s, arguments const& a) {
    candidates<What> const from(block, a);
    if (!from.begins(block, a)) return;
    std::int32_t const columns = from.columns;
    auto const thread = static_cast<std::int32_t>(block.thread());
    // Of a stretch, thread t has every 512th candidate from t on, so that a warp's loads are of neighbours. Behind the end keys
    // are 0, as of NaN: these come last, and ties go to what is before them.
    std::uint32_t keys[items];
    auto const read = [&](std::int32_t base) {
      float score[items];
      KVPOLICY_UNROLL
      for (int i = 0; i < items; ++i) {  // all are on their way before one is looked at
        std::int32_t const c = base + i * static_cast<std::int32_t>(B::threads) + thread;
        score[i] = from.score(block, a, c < columns ? c : columns - 1);
      }
      KVPOLICY_UNROLL
      for (int i = 0; i < items; ++i) {
        keys[i] = base + i * static_cast<std::int32_t>(B::threads) + thread < columns ? sortable_key(score[i]) : 0;
      }
    };
    bool const in_registers = What == part || columns <= stretch;
    auto const each_item = [&](std::int32_t base, auto visit) {
      KVPOLICY_UNROLL
      for (int i = 0; i < items; ++i) {
        if (base + i * static_cast<std::int32_t>(B::threads) < columns) visit(i);
      }
    };
    if (in_registers) read(0);
    radix_threshold const threshold = select_threshold(block, s.radix, from.k, [&](auto visit) {
      for (std::int32_t base = 0; base < columns; base += stretch) {
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
    for (std::int32_t base = 0; base < columns; base += stretch) {
      if (!in_registers) read(base);
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
          from.put(block, a, at, base + i * static_cast<std::int32_t>(B::threads) + thread);
        }
      });
      higher_before += all >> 16;
      ties_before += all & 0xffff;
      block.sync();
    }
  }
};

/// `max_columns` bounds every row's length. Few long rows are ranked in parts, so that more blocks work on them.
template <device D>
void launch_top_k(D& device, top_k_arguments a, std::int64_t rows, std::int64_t max_columns) {
  constexpr std::int64_t most_scratch = std::int64_t{8} << 20;  // bytes
  std::int64_t const parts = divided_up(max_columns, top_k_body<true>::stretch);
  std::int64_t const best = parts * std::min<std::int64_t>(top_k_body<true>::stretch, a.index_stride);
  buffer<std::int32_t> const counters = device.counters();
  if (parts == 1 || rows * best * 4 > most_scratch || rows > counters.size) {
    device.template launch<top_k_body<false>>({rows, 1, 1}, a);
    return;
  }
  scratch_scope const scope(device);
  a.parts = static_cast<std::int32_t>(parts);
  a.best = device.template scratch<std::int32_t>(rows * best);
  a.best_stride = best;
  a.counters = counters;
  device.template launch<top_k_body<true>>({rows, parts, 1}, a);
}

}  // namespace kvpolicy::gpu::detail
