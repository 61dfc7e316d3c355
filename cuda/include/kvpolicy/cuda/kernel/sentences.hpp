// Sentences while decoding: where they end, their retained keys' means, the running query, and the fill of a token budget.
#pragma once

#include "kvpolicy/cuda/kernel/attend.hpp"
#include "kvpolicy/cuda/kernel/top_k.hpp"

namespace kvpolicy::cuda {

/// Where each sequence's sentences end: segment::sentence_marks on the device.
struct sentence_state {
  buffer<std::int32_t> ends;  ///< `[sequences, most]` token behind each closed sentence
  buffer<std::int32_t> units;
  buffer<std::int32_t> open_begin;
  buffer<std::int32_t> closes;  ///< whether the last token ends a sentence
  std::int64_t most = 0;
};

/// Takes in each sequence's current token.
struct sentence_step_body {
  static constexpr unsigned threads = 32;
  static constexpr char const* name = "sentence_step";
  struct arguments {
    sentence_state state;
    per_sequence tokens;
    buffer<std::int32_t const> ids;  ///< `[sequences]`
    std::int64_t sequences = 0;
    buffer<std::uint8_t const> boundary;  ///< `[vocabulary]`
    std::int32_t longest = 1;
    std::int32_t shortest = 1;
  };
  template <class B>
  struct shared {};

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const s = static_cast<std::int64_t>(block.x()) * B::threads + block.thread();
    if (s >= a.sequences) return;
    auto const tokens = static_cast<std::int32_t>(a.tokens.of(block, static_cast<unsigned>(s)));
    if (tokens == 0) return;
    auto const open_begin = block.global(a.state.open_begin);
    auto const closes = block.global(a.state.closes);
    std::int32_t begin = open_begin[s];
    std::int32_t const closed = closes[s];
    std::int32_t const units = block.global(a.state.units)[s];
    if (closed != 0 && tokens - 1 > begin && units < a.state.most) {
      block.global(a.state.ends)[s * a.state.most + units] = tokens - 1;
      block.global(a.state.units)[s] = units + 1;
      begin = tokens - 1;
      open_begin[s] = begin;
    }
    std::int32_t const id = block.global(a.ids)[s];
    std::int32_t const length = tokens - begin;
    bool ends = length >= a.longest;
    if (!ends && id >= 0 && id < a.boundary.size && length >= a.shortest) {
      std::uint8_t const mark = block.global(a.boundary)[id];
      ends = mark != 0;
    }
    closes[s] = ends ? 1 : 0;
  }
};

/// How many of a head's retained tokens come before `token`.
template <class B>
KVPOLICY_KERNEL std::int64_t rank_of(list_reader<B> const& there, std::int64_t token) {
  std::int64_t low = 0;
  std::int64_t high = there.count();
  while (low < high) {
    std::int64_t const middle = (low + high) / 2;
    if (there.token(middle) < token) low = middle + 1;
    else high = middle;
  }
  return low;
}

/// What each head has of each sentence. Layer by layer.
struct sentence_units {
  buffer<float> means;            ///< `[sequences, kv_heads, most, head_dim]`
  buffer<std::int32_t> rank_end;  ///< `[sequences, kv_heads, most]` rank behind the sentence's retained tokens
  buffer<std::int32_t> folded;    ///< `[sequences, kv_heads]` sentences that are in
};

/// Folds in the sentences that have closed since: one block a head and sequence, a thread a channel of a part of the tokens.
template <element_type E>
struct sentence_means_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "sentence_means";
  struct arguments {
    batch_rows keys;
    token_lists there;
    sentence_state state;
    sentence_units units;
  };
  template <class B>
  struct shared {
    typename B::template array<float, 128 * 8> sums;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const list = static_cast<std::int64_t>(block.y()) * a.keys.heads + block.x();
    std::int32_t const units = block.global(a.state.units)[block.y()];
    std::int32_t folded = block.global(a.units.folded)[list];
    row_reader<E, B> const keys(block, a.keys, block.y());
    list_reader<B> const there(block, a.there, block.y(), block.x());
    if (there.count() == 0 || folded >= units) return;
    std::int32_t const parts = a.keys.parts();
    auto const thread = static_cast<std::int32_t>(block.thread());
    std::int32_t const at_once = static_cast<std::int32_t>(B::threads) / parts;
    std::int32_t const row = thread / parts;
    std::int32_t const part = thread - row * parts;
    std::int64_t begin = 0;
    if (folded > 0) {
      std::int32_t const before = block.global(a.units.rank_end)[list * a.state.most + folded - 1];
      begin = before;
    }
    block.sync();  // every thread has read what thread 0 writes below
    for (; folded < units; ++folded) {
      std::int32_t const behind = block.global(a.state.ends)[block.y() * a.state.most + folded];
      std::int64_t const end = rank_of(there, behind);
      float sum[8] = {};
      for (std::int64_t r = begin + row; r < end && row < at_once; r += at_once) {
        float x[8];
        keys.load(keys.offset(block.x(), there.token(r)), part, x);
        KVPOLICY_UNROLL
        for (int i = 0; i < 8; ++i) sum[i] += x[i];
      }
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) s.sums[thread * 8 + i] = sum[i];
      block.sync();
      for (std::int32_t d = thread; d < a.keys.head_dim && end > begin; d += B::threads) {
        float all = 0;
        for (std::int32_t r = 0; r < at_once; ++r) {
          float const one = s.sums[(r * parts + d / 8) * 8 + d % 8];
          all += one;
        }
        block.global(a.units.means)[(list * a.state.most + folded) * a.keys.head_dim + d] =
            all / static_cast<float>(end - begin);
      }
      if (thread == 0) block.global(a.units.rank_end)[list * a.state.most + folded] = static_cast<std::int32_t>(end);
      begin = end;
      block.sync();
    }
    if (thread == 0) block.global(a.units.folded)[list] = units;
  }
};

/// The sum of the open sentence's queries: begun afresh where its first token is the current one.
struct query_sums_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "query_sums";
  struct arguments {
    vector_rows queries;
    std::int32_t group = 1;
    std::int32_t heads = 1;
    std::int32_t head_dim = 0;
    per_sequence tokens;
    buffer<std::int32_t const> open_begin;
    buffer<std::int32_t> count;  ///< `[sequences, kv_heads]` queries in the sum
    buffer<float> sums;          ///< `[sequences, kv_heads, head_dim]`
  };
  template <class B>
  struct shared {};

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const list = static_cast<std::int64_t>(block.y()) * a.heads + block.x();
    std::int64_t const tokens = a.tokens.of(block, block.y());
    if (tokens == 0) return;
    std::int32_t const begin = block.global(a.open_begin)[block.y()];
    std::int32_t const before = block.global(a.count)[list];
    block.sync();  // every thread has read what thread 0 writes below
    bool const fresh = tokens - begin == 1 || before == 0;
    auto const sums = block.global(a.sums);
    for (std::int32_t d = static_cast<std::int32_t>(block.thread()); d < a.head_dim; d += B::threads) {
      float sum = 0;
      if (!fresh) sum = sums[list * a.head_dim + d];
      for (std::int32_t g = 0; g < a.group; ++g) {
        sum += get(block, a.queries,
                   block.y() * a.queries.sequence_stride + (block.x() * a.group + g) * a.queries.head_stride + d);
      }
      sums[list * a.head_dim + d] = sum;
    }
    if (block.thread() == 0) block.global(a.count)[list] = fresh ? 1 : before + 1;
  }
};

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
    token_lists there;
    std::int32_t heads = 1;
    per_sequence budget;  ///< tokens
    std::int32_t sinks = 0;
    std::int32_t recent = 1;
    bool all_after_boundary = false;
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

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const list = static_cast<std::int64_t>(block.y()) * a.heads + block.x();
    list_reader<B> const there(block, a.there, block.y(), block.x());
    std::int64_t const ranks = there.count();
    auto const thread = static_cast<std::int32_t>(block.thread());
    if (ranks == 0) {
      if (thread == 0) block.global(a.named)[list] = 0;
      return;
    }
    // window::tokens, by rank.
    std::int64_t const recent_begin = ranks > a.recent ? ranks - a.recent : 0;
    std::int64_t const sink_end = a.sinks < recent_begin ? a.sinks : recent_begin;
    std::int64_t const sequence_tokens = a.there.tokens.of(block, block.y());
    std::int32_t const open_begin = block.global(a.state.open_begin)[block.y()];
    std::int64_t const open = rank_of(there, open_begin);
    std::int64_t tail = open < recent_begin ? open : recent_begin;
    tail = tail > sink_end ? tail : sink_end;
    std::int32_t const units = block.global(a.state.units)[block.y()];
    std::int64_t budget = a.budget.of(block, block.y()) - (sink_end + ranks - recent_begin);
    auto const ends = block.global(a.units.rank_end);
    auto const scores = block.global(a.scores);

    struct unit {
      std::int64_t begin;
      std::int32_t size;
      std::uint32_t key;
    };
    auto const unit_at = [&](std::int32_t u) {
      unit found{0, 0, 0};
      if (u > 0) {
        std::int32_t const before = ends[list * a.state.most + u - 1];
        found.begin = before;
      }
      found.begin = found.begin > sink_end ? found.begin : sink_end;
      std::int32_t const behind = ends[list * a.state.most + u];
      std::int64_t const end = behind < recent_begin ? behind : recent_begin;
      found.size = end > found.begin ? static_cast<std::int32_t>(end - found.begin) : 0;
      float const score = scores[list * a.stride + u];
      found.key = key_of(score);
      return found;
    };
    auto const each_unit = [&](auto visit) {
      for (std::int32_t u = thread; u < units; u += B::threads) {
        unit const mine = unit_at(u);
        visit(mine.key, mine.size);
      }
    };
    std::int32_t offered = 0;
    each_unit([&](std::uint32_t, std::int32_t size) { offered += size; });
    offered = block.reduce(s.reduce, offered, [](std::int32_t x, std::int32_t y) { return x + y; });
    if (thread == 0) s.total[0] = offered;
    block.sync();
    offered = s.total[0];
    if (a.all_after_boundary && sequence_tokens - open_begin == 1) budget = offered;
    std::int32_t const wanted = budget < 0 ? 0 : budget < offered ? static_cast<std::int32_t>(budget) : offered;
    radix_threshold threshold{0xffffffffu, 0};
    if (wanted > 0) threshold = select_threshold(block, s.radix, wanted, each_unit);

    auto const out = block.global(a.list);
    std::int64_t const at = list * a.list_stride;
    for (std::int64_t r = thread; r < sink_end; r += B::threads) out[at + r] = static_cast<std::int32_t>(there.token(r));
    std::int64_t written = sink_end;
    std::int32_t ties_before = 0;
    for (std::int32_t base = 0; base < units && wanted > 0; base += B::threads) {
      unit mine{0, 0, 0};
      bool const real = base + thread < units;
      if (real) mine = unit_at(base + thread);
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
      for (std::int32_t i = 0; i < count; ++i) out[at + to + i] = static_cast<std::int32_t>(there.token(mine.begin + i));
      written += all;
      ties_before += all_ties;
      block.sync();
    }
    for (std::int64_t r = tail + thread; r < ranks; r += B::threads) {
      out[at + written + (r - tail)] = static_cast<std::int32_t>(there.token(r));
    }
    if (thread == 0) block.global(a.named)[list] = static_cast<std::int32_t>(written + ranks - tail);
  }
};

}  // namespace kvpolicy::cuda
