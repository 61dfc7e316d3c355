// Sentences while decoding: where they end, their retained keys' means, and the running query.
#pragma once

#include "kvpolicy/cuda/kernel/lists.hpp"

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
KVPOLICY_KERNEL std::int64_t index_of(list_reader<B> const& retained, std::int64_t token) {
  std::int64_t low = 0;
  std::int64_t high = retained.count();
  while (low < high) {
    std::int64_t const middle = (low + high) / 2;
    if (retained.token(middle) < token) low = middle + 1;
    else high = middle;
  }
  return low;
}

/// What each head has of each sentence. Layer by layer.
struct sentence_units {
  buffer<float> means;             ///< `[sequences, kv_heads, most, head_dim]`
  buffer<std::int32_t> index_end;  ///< `[sequences, kv_heads, most]` rank behind the sentence's retained tokens
  buffer<std::int32_t> folded;     ///< `[sequences, kv_heads]` sentences that are in
};

/// Folds in the sentences that have closed since: one block a head and sequence, a thread a channel of a part of the tokens.
template <element_type E>
struct sentence_means_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "sentence_means";
  struct arguments {
    batch_rows keys;
    token_lists retained;
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
    list_reader<B> const retained(block, a.retained, block.y(), block.x());
    if (retained.count() == 0 || folded >= units) return;
    std::int32_t const parts = a.keys.parts();
    auto const thread = static_cast<std::int32_t>(block.thread());
    std::int32_t const at_once = static_cast<std::int32_t>(B::threads) / parts;
    std::int32_t const row = thread / parts;
    std::int32_t const part = thread - row * parts;
    std::int64_t begin = 0;
    if (folded > 0) {
      std::int32_t const before = block.global(a.units.index_end)[list * a.state.most + folded - 1];
      begin = before;
    }
    block.sync();  // every thread has read what thread 0 writes below
    for (; folded < units; ++folded) {
      std::int32_t const behind = block.global(a.state.ends)[block.y() * a.state.most + folded];
      std::int64_t const end = index_of(retained, behind);
      float sum[8] = {};
      for (std::int64_t r = begin + row; r < end && row < at_once; r += at_once) {
        float x[8];
        keys.load(keys.offset(block.x(), retained.token(r)), part, x);
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
      if (thread == 0) block.global(a.units.index_end)[list * a.state.most + folded] = static_cast<std::int32_t>(end);
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

}  // namespace kvpolicy::cuda
