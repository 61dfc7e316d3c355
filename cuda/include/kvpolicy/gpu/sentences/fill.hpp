// A step's list of sentences: the fill of a token budget.
#pragma once

#include "kvpolicy/gpu/base/radix.hpp"
#include "kvpolicy/gpu/sentences/buckets.hpp"

namespace kvpolicy::gpu::detail {

/// Whole sentences by falling score until the budget is spent, the last one cut; with sinks, recent tokens and the open
/// sentence that is a step's list. One block a head and sequence.
struct sentence_fill_body {
  static constexpr unsigned threads = 512;
  static constexpr char const* name = "sentence_fill";
  struct arguments {
    buffer<float const> scores;  ///< `[sequences, kv_heads, stride]`
    std::int64_t stride = 0;
    sentence_state state;
    sentence_units units;
    buffer<std::uint8_t const> stands;  ///< `[sequences, kv_heads, most]`, not 0: ranks first; or none
    token_lists retained;
    std::int32_t heads = 1;
    per_sequence budget;  ///< tokens
    std::int32_t sinks = 0;
    std::int32_t recent = 1;
    bool all_after_boundary = false;
    bool generated = false;     ///< what came after the prompt is read, beside the budget, in place of `recent`
    per_sequence prompt;        ///< tokens
    buffer<std::int32_t> list;  ///< `[sequences, kv_heads, list_stride]` tokens
    std::int64_t list_stride = 0;
    buffer<std::int32_t> named;  ///< `[sequences, kv_heads]`
  };
  template <class B>
  struct shared {
    radix_shared<B> radix;
    typename B::template reduce_storage<std::int32_t> reduce;
    typename B::template array<std::int32_t, 1> total;
  };

  /// A sentence as far as the window leaves it: its first index, how many are behind that, and its rank.
  struct unit {
    std::int64_t begin;
    std::int32_t size;
    std::uint32_t key;
  };
  struct stored_unit {
    std::int32_t before;
    std::int32_t behind;
    float score;
    std::uint8_t stands;
  };
  /// The sentences of one head.
  template <class B>
  struct candidates {
    B& block;
    arguments const& a;
    std::int64_t list;
    std::int32_t units;
    std::int64_t sink_end;
    std::int64_t recent_begin;

    KVPOLICY_KERNEL stored_unit load(std::int32_t u) const {
      auto const ends = block.global(a.units.index_end);
      stored_unit found;
      found.before = ends[list * a.state.most + (u > 0 ? u - 1 : 0)];
      found.behind = ends[list * a.state.most + u];
      found.score = block.global(a.scores)[list * a.stride + u];
      found.stands = 0;
      if (a.stands.data != nullptr) found.stands = block.global(a.stands)[list * a.state.most + u];
      return found;
    }
    KVPOLICY_KERNEL unit unit_of(stored_unit const& from, std::int32_t u) const {
      unit found;
      found.begin = u > 0 && from.before > sink_end ? from.before : sink_end;
      std::int64_t const end = from.behind < recent_begin ? from.behind : recent_begin;
      found.size = end > found.begin ? static_cast<std::int32_t>(end - found.begin) : 0;
      found.key = sortable_key(from.stands != 0 ? __builtin_huge_valf() : from.score);
      return found;
    }
    /// Calls visit(key, size) for this thread's sentences.
    template <class Visit>
    KVPOLICY_KERNEL void each(Visit visit) const {
      constexpr int at_once = 4;  // units of a thread that are on their way together
      for (auto base = static_cast<std::int32_t>(block.thread()); base < units;
           base += at_once * static_cast<std::int32_t>(B::threads)) {
        stored_unit found[at_once];
        KVPOLICY_UNROLL
        for (int i = 0; i < at_once; ++i) {
          std::int32_t const u = base + i * static_cast<std::int32_t>(B::threads);
          found[i] = load(u < units ? u : units - 1);
        }
        KVPOLICY_UNROLL
        for (int i = 0; i < at_once; ++i) {
          std::int32_t const u = base + i * static_cast<std::int32_t>(B::threads);
          if (u >= units) continue;
          unit const mine = unit_of(found[i], u);
          visit(mine.key, mine.size);
        }
      }
    }
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const list = static_cast<std::int64_t>(block.y()) * a.heads + block.x();
    list_reader<B> const retained(block, a.retained, block.y(), block.x());
    std::int64_t const indices = retained.count();
    auto const thread = static_cast<std::int32_t>(block.thread());
    if (indices == 0) {
      if (thread == 0) block.global(a.named)[list] = 0;
      return;
    }
    // windows::tokens, by index.
    std::int64_t const prompt = a.prompt.of(block, block.y());
    std::int64_t recent_begin = indices > a.recent ? indices - a.recent : 0;
    std::int64_t const sequence_tokens = a.retained.tokens.of(block, block.y());
    bool const generated = a.generated && sequence_tokens > prompt;
    if (generated) recent_begin = index_of(retained, static_cast<std::int32_t>(prompt));
    std::int64_t const sink_end = a.sinks < recent_begin ? a.sinks : recent_begin;
    std::int32_t const open_begin = block.global(a.state.open_begin)[block.y()];
    std::int64_t const open = index_of(retained, open_begin);
    std::int64_t tail = open < recent_begin ? open : recent_begin;
    tail = tail > sink_end ? tail : sink_end;
    std::int32_t const units = block.global(a.state.units)[block.y()];
    std::int64_t budget = a.budget.of(block, block.y()) - (sink_end + (generated ? 0 : indices - recent_begin));
    candidates<B> const of{block, a, list, units, sink_end, recent_begin};
    std::int32_t offered = 0;
    of.each([&](std::uint32_t, std::int32_t size) { offered += size; });
    offered = block.reduce(s.reduce, offered, [](std::int32_t x, std::int32_t y) { return x + y; });
    if (thread == 0) s.total[0] = offered;
    block.sync();
    offered = s.total[0];
    std::int32_t const closes = block.global(a.state.closes)[block.y()];
    bool const at_boundary =
        sequence_tokens - open_begin == 1 || closes == segments::mark_ends || sequence_tokens == prompt + 1;
    if (a.all_after_boundary && at_boundary) budget = offered;
    std::int32_t const wanted = budget < 0 ? 0 : budget < offered ? static_cast<std::int32_t>(budget) : offered;
    radix_threshold threshold{0xffffffffu, 0};
    if (wanted > 0) threshold = select_threshold(block, s.radix, wanted, [&](auto visit) { of.each(visit); });

    auto const out = block.global(a.list);
    std::int64_t const at = list * a.list_stride;
    for (std::int64_t r = thread; r < sink_end; r += B::threads) out[at + r] = static_cast<std::int32_t>(retained.token(r));
    std::int64_t written = sink_end;
    std::int32_t ties_before = 0;
    for (std::int32_t base = 0; base < units && wanted > 0; base += B::threads) {
      unit mine{0, 0, 0};
      bool const real = base + thread < units;
      if (real) mine = of.unit_of(of.load(base + thread), base + thread);
      bool const tie = real && mine.key == threshold.key;
      std::int32_t all_ties = 0;
      std::int32_t const ties = ties_before + block.exclusive_sum(s.radix.ties, tie ? mine.size : 0, all_ties);
      std::int32_t const left = threshold.ties - ties;
      std::int32_t taken = real && mine.key > threshold.key ? mine.size : 0;
      if (tie && left > 0) taken = left < mine.size ? left : mine.size;
      // What the open sentence or the window covers is in the tail.
      std::int64_t const behind = mine.begin + taken < tail ? mine.begin + taken : tail;
      std::int32_t const count = taken > 0 && behind > mine.begin ? static_cast<std::int32_t>(behind - mine.begin) : 0;
      std::int32_t all = 0;
      std::int64_t const to = written + block.exclusive_sum(s.radix.scan, count, all);
      for (std::int32_t i = 0; i < count; ++i) out[at + to + i] = static_cast<std::int32_t>(retained.token(mine.begin + i));
      written += all;
      ties_before += all_ties;
      block.sync();
    }
    for (std::int64_t r = tail + thread; r < indices; r += B::threads) {
      out[at + written + (r - tail)] = static_cast<std::int32_t>(retained.token(r));
    }
    if (thread == 0) block.global(a.named)[list] = static_cast<std::int32_t>(written + indices - tail);
  }
};

}  // namespace kvpolicy::gpu::detail
