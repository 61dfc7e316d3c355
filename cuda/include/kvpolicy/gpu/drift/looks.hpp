// The overlap monitor: what pivots attended to over a window of steps against what they did when their satellites were last
// fetched.
#pragma once

#include "kvpolicy/gpu/attention/lists.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// Which heads look, of one layer: all `[sequences, kv_heads]`.
struct drift_heads {
  buffer<std::int32_t const> base;    ///< tokens that a head's sets have; 0: the head does not look
  buffer<std::int32_t const> leader;  ///< whose attention moves it to fetch; -1: nobody's
  buffer<std::int32_t const> source;  ///< whose attention says what it fetches
  buffer<std::int32_t> looks;         ///< prompt tokens that it looks at in this step, or 0
  buffer<std::int32_t> fired;
  buffer<std::int32_t> due;  ///< prompt tokens that it chooses among in this step, or 0
};

/// Keeps the current queries of heads that look: their place in the window is `seen`, below 0 where the
/// window has not begun.
struct keep_queries_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "keep_queries";
  struct arguments {
    vector_rows queries;
    drift_heads of;
    std::int32_t heads = 1;
    std::int32_t group = 1;
    std::int32_t head_dim = 0;
    std::int32_t window = 1;
    per_sequence tokens;
    per_sequence prompt;
    per_sequence seen;
    buffer<float> kept;  ///< `[sequences, kv_heads, window, group, head_dim]`
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const row = static_cast<std::int64_t>(block.y()) * a.heads + block.x();
    std::int32_t const base = block.global(a.of.base)[row];
    auto const seen = static_cast<std::int32_t>(a.seen.of(block, block.y()));
    bool const there = a.tokens.of(block, block.y()) > 0 && base > 0;
    if (block.thread() == 0) {
      auto const prompt = static_cast<std::int32_t>(a.prompt.of(block, block.y()));
      block.global(a.of.looks)[row] = there && seen + 1 == a.window ? prompt : 0;
    }
    if (!there || seen < 0) return;
    std::int32_t const size = a.group * a.head_dim;
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < size; i += B::threads) {
      std::int32_t const g = i / a.head_dim;
      block.global(a.kept)[(row * a.window + seen) * size + i] =
          get(block, a.queries,
              a.queries.begin(block, block.y()) + (block.x() * a.group + g) * a.queries.head_stride + (i - g * a.head_dim));
    }
  }
};

/// Whether a watched head has drifted: the median over the window of its sets' overlap with the baseline. Where it has, the
/// last set is the baseline from here on. One block a head and sequence; the last to end says which heads are fetched for,
/// those whose leader has drifted.
struct drift_body {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "drift";
  static constexpr int longest_window = 15;
  struct arguments {
    drift_heads of;
    std::int32_t heads = 1;
    std::int32_t window = 1;
    buffer<std::int32_t const> sets;  ///< `[sequences, kv_heads, window, stride]` ascending
    buffer<std::int32_t> baseline;    ///< `[sequences, kv_heads, stride]` ascending
    std::int64_t stride = 0;
    float tau = 0;
    bool chance_corrected = false;
    std::int64_t rows = 0;  ///< sequences x KV heads
    per_sequence prompt;
    buffer<std::int32_t> counters{};  ///< `[1]` zero
  };
  template <class B>
  struct shared {
    typename B::template reduce_storage<std::int32_t> reduce;
    typename B::template array<std::int32_t, longest_window> common;
    typename B::template array<std::int32_t, 1> fired;
    typename B::last_storage last;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const row = static_cast<std::int64_t>(block.y()) * a.heads + block.x();
    std::int32_t const prompt = block.global(a.of.looks)[row];
    if (prompt != 0) look(block, s, a, row, prompt);
    else if (block.thread() == 0) block.global(a.of.fired)[row] = 0;
    if (!block.last_of(s.last, a.counters, 0, static_cast<std::int32_t>(a.rows))) return;
    for (std::int64_t r = block.thread(); r < a.rows; r += B::threads) follow(block, a, r);
  }

 private:
  template <class B>
  KVPOLICY_KERNEL static void look(B& block, shared<B>& s, arguments const& a, std::int64_t row, std::int32_t prompt) {
    auto const thread = static_cast<std::int32_t>(block.thread());
    std::int32_t const base = block.global(a.of.base)[row];
    auto const sets = block.global(a.sets);
    auto const baseline = block.global(a.baseline);
    for (std::int32_t w = 0; w < a.window; ++w) {
      std::int32_t common = 0;
      for (std::int32_t i = thread; i < base; i += B::threads) {
        std::int32_t const token = sets[(row * a.window + w) * a.stride + i];
        std::int32_t low = 0;
        std::int32_t high = base;
        while (low < high) {
          std::int32_t const middle = (low + high) / 2;
          std::int32_t const other = baseline[row * a.stride + middle];
          if (other < token) low = middle + 1;
          else high = middle;
        }
        if (low >= base) continue;
        std::int32_t const found = baseline[row * a.stride + low];
        common += found == token ? 1 : 0;
      }
      common = block.reduce(s.reduce, common, [](std::int32_t x, std::int32_t y) { return x + y; });
      if (thread == 0) s.common[w] = common;
      block.sync();
    }
    if (thread == 0) {
      // Overlaps rank as counts do; of an odd window the median is one of them.
      std::int32_t median = 0;
      for (std::int32_t w = 0; w < a.window; ++w) {
        std::int32_t const mine = s.common[w];
        std::int32_t below = 0;
        std::int32_t equal = 0;
        for (std::int32_t v = 0; v < a.window; ++v) {
          std::int32_t const other = s.common[v];
          below += other < mine ? 1 : 0;
          equal += other == mine ? 1 : 0;
        }
        if (below <= a.window / 2 && a.window / 2 < below + equal) median = mine;
      }
      double overlap = static_cast<double>(median) / static_cast<double>(base);
      double const chance = static_cast<double>(base) / static_cast<double>(prompt);
      if (a.chance_corrected && chance < 1) overlap = (overlap - chance) / (1 - chance);
      s.fired[0] = overlap >= static_cast<double>(a.tau) ? 0 : 1;
      std::int32_t const fired = s.fired[0];
      block.global(a.of.fired)[row] = fired;
    }
    block.sync();
    std::int32_t const fired = s.fired[0];
    if (fired == 0) return;
    for (std::int32_t i = thread; i < base; i += B::threads) {
      std::int32_t const token = sets[(row * a.window + a.window - 1) * a.stride + i];
      baseline[row * a.stride + i] = token;
    }
  }

  template <class B>
  KVPOLICY_KERNEL static void follow(B& block, arguments const& a, std::int64_t row) {
    std::int64_t const sequence = row / a.heads;
    auto const prompt = static_cast<std::int32_t>(a.prompt.of(block, static_cast<unsigned>(sequence)));
    auto const fired = block.global(a.of.fired);
    std::int32_t const leader = block.global(a.of.leader)[row];
    bool const due = leader >= 0 && fired[sequence * a.heads + leader] != 0;
    block.global(a.of.due)[row] = due ? prompt : 0;
  }
};

}  // namespace kvpolicy::gpu::detail
