// Exact top-k of rows, indices ascending. A block has a row; of a long one blocks count the first digits of parts, then list
// what is not below the k-th's, and the last ranks these.
#pragma once

#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/gpu/base/ranked_keys.hpp"

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
  bool keeps_empty = false;         ///< a row without candidates is left as it is
  std::int32_t parts = 1;           ///< blocks that share a row; the rest is theirs, if there are several
  buffer<std::int32_t> no_lower{};  ///< `[rows, parts, radix::values]` candidates of at least a digit, from the largest down
  buffer<std::int32_t> digit{};     ///< `[rows, 2]` place of the k-th's digit, and candidates of that digit that are wanted
  buffer<std::int32_t> best{};      ///< `[rows, best_stride]` columns of those whose digit is no lower
  std::int64_t best_stride = 0;
  buffer<std::int32_t> counters{};  ///< `[rows]` zeros
};

/// A row's candidates, and how many of them are wanted.
struct top_k_row {
  std::int64_t nth;
  std::int32_t first;
  std::int32_t columns;
  std::int32_t k;

  template <class B>
  KVPOLICY_KERNEL top_k_row(B& block, top_k_arguments const& a, std::int64_t row) : nth(row) {
    auto const number = static_cast<unsigned>(row) / static_cast<unsigned>(a.rows_of_number);
    first = static_cast<std::int32_t>(a.first.of(block, number));
    columns = static_cast<std::int32_t>(a.columns.of(block, number));
    auto const wanted = static_cast<std::int32_t>(a.k.of(block, number));
    k = wanted < 0 ? 0 : wanted < columns ? wanted : columns;
  }
  KVPOLICY_KERNEL bool scores_decide() const { return k > 0 && k < columns; }
  template <class B>
  KVPOLICY_KERNEL float score(B& block, top_k_arguments const& a, std::int32_t column) const {
    return block.global(a.scores)[nth * a.score_stride + first + column];
  }
  template <class B>
  KVPOLICY_KERNEL void put(B& block, top_k_arguments const& a, std::int32_t place, std::int32_t column) const {
    block.global(a.indices)[nth * a.index_stride + first + place] = first + column;
  }
  /// Writes what no score decides: of columns [begin, end), and with the first ones what is before the candidates.
  template <class B>
  KVPOLICY_KERNEL void put_undecided(B& block, top_k_arguments const& a, std::int32_t begin, std::int32_t end) const {
    if (columns == 0 && a.keeps_empty) return;
    auto const thread = static_cast<std::int32_t>(block.thread());
    if (begin == 0) {
      if (a.tokens.data != nullptr && thread == 0) block.global(a.tokens)[nth] = (first + k) * a.unit_size;
      for (std::int32_t i = thread; i < first; i += B::threads) put(block, a, i - first, i - first);
    }
    if (k < columns) return;
    for (std::int32_t i = begin + thread; i < end && i < columns; i += B::threads) put(block, a, i, i);
  }
  /// Puts the k highest of all candidates by `score_of(c)`. Collective.
  template <class B, class Score>
  KVPOLICY_KERNEL void rank(B& block, ranked_keys::shared<B>& s, top_k_arguments const& a, Score score_of) const {
    put_undecided(block, a, 0, columns);
    if (!scores_decide()) return;
    ranked_keys::keep(
        block, s, columns, score_of, [&](auto each) { return select_threshold(block, s.radix, k, each); },
        [&](std::int32_t place, std::int32_t c) { put(block, a, place, c); });
  }
};

/// indices(r, :) = [0, first), then the k[r] highest of row r's candidates, ascending. One block a row.
struct top_k_body {
  static constexpr unsigned threads = ranked_keys::threads;
  static constexpr char const* name = "top_k";
  using arguments = top_k_arguments;
  template <class B>
  using shared = ranked_keys::shared<B>;

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    top_k_row const row(block, a, block.x());
    row.rank(block, s, a, [&](std::int32_t c) { return row.score(block, a, c); });
  }
};

/// The first digit of a long row's k-th candidate: each block counts its part's, the last one to end adds them up.
struct top_k_digits_body {
  static constexpr unsigned threads = ranked_keys::threads;
  static constexpr char const* name = "top_k_digits";
  static constexpr int items = 8;
  static constexpr std::int32_t stretch = threads * items;  ///< candidates of a part
  static constexpr int of_thread = radix::values / threads;
  static_assert(of_thread == 4);  // a thread reads and writes its values at once
  using arguments = top_k_arguments;
  template <class B>
  struct shared {
    typename B::template array<std::int32_t, radix::values> histogram;
    typename B::template scan_storage<std::int32_t> scan;
    typename B::last_storage last;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    top_k_row const row(block, a, block.x());
    if (!row.scores_decide()) return;
    auto const thread = static_cast<std::int32_t>(block.thread());
    KVPOLICY_UNROLL
    for (int i = 0; i < of_thread; ++i) s.histogram[thread + i * static_cast<std::int32_t>(threads)] = 0;
    block.sync();
    std::int32_t const begin = static_cast<std::int32_t>(block.y()) * stretch;
    float score[items];
    KVPOLICY_UNROLL
    for (int i = 0; i < items; ++i) {
      std::int32_t const c = begin + i * static_cast<std::int32_t>(threads) + thread;
      score[i] = row.score(block, a, c < row.columns ? c : row.columns - 1);
    }
    KVPOLICY_UNROLL
    for (int i = 0; i < items; ++i) {
      std::int32_t const c = begin + i * static_cast<std::int32_t>(threads) + thread;
      if (c < row.columns) s.histogram.atomic_add(place_of(sortable_key(score[i])), 1);
    }
    block.sync();
    std::int32_t counts[of_thread];
    std::int32_t sum = 0;
    KVPOLICY_UNROLL
    for (int i = 0; i < of_thread; ++i) {
      std::int32_t const count = s.histogram[thread * of_thread + i];
      counts[i] = sum += count;
    }
    std::int32_t all = 0;
    std::int32_t const before = block.exclusive_sum(s.scan, sum, all);
    auto const no_lower = block.global(a.no_lower);
    pack mine;
    KVPOLICY_UNROLL
    for (int i = 0; i < of_thread; ++i) mine.word[i] = static_cast<std::uint32_t>(before + counts[i]);
    no_lower.store((row.nth * a.parts + block.y()) * radix::values + thread * of_thread, mine);
    if (!block.last_of(s.last, a.counters, row.nth, a.parts)) return;
    std::int32_t totals[of_thread] = {};
    KVPOLICY_UNROLL_4
    for (std::int32_t part = 0; part < a.parts; ++part) {
      pack const of_part = no_lower.load((row.nth * a.parts + part) * radix::values + thread * of_thread);
      KVPOLICY_UNROLL
      for (int i = 0; i < of_thread; ++i) totals[i] += static_cast<std::int32_t>(of_part.word[i]);
    }
    s.histogram[thread] = totals[of_thread - 1];
    block.sync();
    std::int32_t higher = 0;
    if (thread > 0) higher = s.histogram[thread - 1];
    KVPOLICY_UNROLL
    for (int i = 0; i < of_thread; ++i) {
      if (higher < row.k && row.k <= totals[i]) {
        block.global(a.digit)[row.nth * 2] = thread * of_thread + i;
        block.global(a.digit)[row.nth * 2 + 1] = row.k - higher;
      }
      higher = totals[i];
    }
  }

  static KVPOLICY_KERNEL std::int32_t place_of(std::uint32_t key) {
    return radix::values - 1 - static_cast<std::int32_t>(key >> radix::first_shift);
  }
};

/// As top_k_body, of a row whose k-th's digit is known: each block lists the candidates of its part that are no lower, and the
/// last one to end ranks these.
struct top_k_parts_body {
  static constexpr unsigned threads = ranked_keys::threads;
  static constexpr char const* name = "top_k_parts";
  using arguments = top_k_arguments;
  template <class B>
  struct shared {
    ranked_keys::shared<B> ranked;
    typename B::last_storage last;
    typename B::template array<std::int32_t, 1> before;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    constexpr std::int32_t stretch = top_k_digits_body::stretch;
    top_k_row const row(block, a, block.x());
    std::int32_t const begin = static_cast<std::int32_t>(block.y()) * stretch;
    if (row.columns == 0 && (begin > 0 || a.keeps_empty)) return;
    row.put_undecided(block, a, begin, begin + stretch);
    if (!row.scores_decide()) return;
    std::int32_t const place = block.global(a.digit)[row.nth * 2];
    std::int32_t const wanted = block.global(a.digit)[row.nth * 2 + 1];
    std::uint32_t const digit = static_cast<std::uint32_t>(radix::values - 1 - place) << radix::first_shift;
    auto const thread = static_cast<std::int32_t>(block.thread());
    std::int32_t of_part = 0;
    if (thread < a.parts) of_part = block.global(a.no_lower)[(row.nth * a.parts + thread) * radix::values + place];
    std::int32_t listed = 0;
    std::int32_t const earlier = block.exclusive_sum(s.ranked.radix.scan, of_part, listed);
    if (block.thread() == block.y()) s.before[0] = earlier;
    block.sync();
    std::int32_t const before = s.before[0];
    auto const best = block.global(a.best);
    std::int64_t const at = row.nth * a.best_stride;
    std::int32_t const columns = row.columns - begin < stretch ? row.columns - begin : stretch;
    ranked_keys::keep<top_k_digits_body::items>(
        block, s.ranked, columns, [&](std::int32_t c) { return row.score(block, a, begin + c); },
        [&](auto) {
          return radix_threshold{digit, stretch};
        },
        [&](std::int32_t nth, std::int32_t c) {
          if (c < columns) best[at + before + nth] = begin + c;  // behind the end keys are the lowest
        });
    if (!block.last_of(s.last, a.counters, row.nth, a.parts)) return;
    auto const column = [&](std::int32_t c) {
      std::int32_t const named = best[at + c];
      return named;
    };
    ranked_keys::keep(
        block, s.ranked, listed, [&](std::int32_t c) { return row.score(block, a, column(c)); },
        [&](auto each) { return select_threshold(block, s.ranked.radix, wanted, each, digit, radix::first_shift); },
        [&](std::int32_t nth, std::int32_t c) { row.put(block, a, nth, column(c)); });
  }
};

/// `max_columns` bounds every row's length. More blocks rank the parts of rows that are long, or few and not short.
template <device D>
void launch_top_k(D& device, top_k_arguments a, std::int64_t rows, std::int64_t max_columns) {
  constexpr std::int64_t few = 16;
  constexpr std::int64_t most_scratch = std::int64_t{32} << 20;  // bytes
  std::int64_t const parts = divided_up(max_columns, top_k_digits_body::stretch);
  bool const in_parts = max_columns > (rows <= few ? ranked_keys::stretch / 4 * 3 : ranked_keys::stretch);
  buffer<std::int32_t> const counters = device.counters();
  if (!in_parts || parts > top_k_parts_body::threads || rows > counters.size ||
      rows * (parts * radix::values + max_columns) * 4 > most_scratch) {
    device.template launch<top_k_body>({rows, 1, 1}, a);
    return;
  }
  scratch_scope const scope(device);
  a.parts = static_cast<std::int32_t>(parts);
  a.no_lower = device.template scratch<std::int32_t>(rows * parts * radix::values);
  a.digit = device.template scratch<std::int32_t>(rows * 2);
  a.best = device.template scratch<std::int32_t>(rows * max_columns);
  a.best_stride = max_columns;
  a.counters = counters;
  device.template launch<top_k_digits_body>({rows, parts, 1}, a);
  device.template launch<top_k_parts_body>({rows, parts, 1}, a);
}

}  // namespace kvpolicy::gpu::detail
