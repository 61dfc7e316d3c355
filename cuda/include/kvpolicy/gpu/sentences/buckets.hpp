// Sentences while decoding: where they end, their retained keys' means, and the running query.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/attention/lists.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/pooling/pool.hpp"
#include "kvpolicy/segments/sentence_mark.hpp"

namespace kvpolicy::gpu::detail {

/// Where each sequence's sentences end: segments::sentence_marks on the device.
struct sentence_state {
  buffer<std::int32_t> ends;  ///< `[sequences, most]` token behind each closed sentence
  buffer<std::int32_t> units;
  buffer<std::int32_t> open_begin;
  buffer<std::int32_t> closes;  ///< what sentences::behind() says of the last token
  buffer<std::int32_t> scored;  ///< `units` of a sequence that steps, 0 of one that pauses
  std::int64_t most = 0;
};

/// Takes in each sequence's current token.
struct sentence_step_body : no_shared {
  static constexpr unsigned threads = 32;
  static constexpr char const* name = "sentence_step";
  struct arguments {
    sentence_state state;
    per_sequence tokens;
    buffer<std::int32_t const> ids;  ///< `[rows]`
    row_map rows;
    std::int64_t sequences = 0;
    buffer<std::uint16_t const> boundary;  ///< `[vocabulary]` fragment_of_mark() of each token's entry
    std::int32_t longest = 1;
    std::int32_t shortest = 1;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    std::int64_t const s = index_in_grid(block);
    if (s >= a.sequences) return;
    auto const tokens = static_cast<std::int32_t>(a.tokens.of(block, static_cast<unsigned>(s)));
    block.global(a.state.scored)[s] = 0;
    if (tokens == 0) return;
    auto const open_begin = block.global(a.state.open_begin);
    auto const closes = block.global(a.state.closes);
    std::int32_t begin = open_begin[s];
    std::int32_t const before = closes[s];
    std::int32_t units = block.global(a.state.units)[s];
    if (before == segments::mark_ends && tokens - 1 > begin && units < a.state.most) {
      block.global(a.state.ends)[s * a.state.most + units] = tokens - 1;
      block.global(a.state.units)[s] = ++units;
      begin = tokens - 1;
      open_begin[s] = begin;
    }
    block.global(a.state.scored)[s] = units;
    std::int32_t const id = block.global(a.ids)[a.rows.of(block, static_cast<unsigned>(s))];
    std::int32_t const length = tokens - begin;
    std::uint16_t now = length >= a.longest ? segments::mark_ends : std::uint16_t{0};
    if (now == 0 && id >= 0 && id < a.boundary.size) {
      std::uint16_t const fragment = block.global(a.boundary)[id];
      now = segments::joined_mark(static_cast<std::uint16_t>(before), fragment);
      if (now == segments::mark_ends && length < a.shortest) now = 0;
    }
    closes[s] = now;
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
  batch_vectors vectors;  ///< each sentence's mean; or, as `spread`, mean + deviation, then mean - deviation
  bool spread = false;
  buffer<std::int32_t> index_end;  ///< `[sequences, kv_heads, most]` rank behind the sentence's retained tokens
  buffer<std::int32_t> folded;     ///< `[sequences, kv_heads]` sentences that are in
};

KVPOLICY_KERNEL float within(float value, float most) { return value > most ? most : value < -most ? -most : value; }

/// The sum of the queries so far, of which each step carries a share over; where that is 1, begun afresh where the open
/// sentence's first token is the current one.
struct query_sums {
  vector_rows queries;
  std::int32_t group = 1;
  std::int32_t heads = 1;
  std::int32_t head_dim = 0;
  float carry = 1;
  bool apart = false;  ///< each query head's, rather than the group's
  per_sequence tokens;
  buffer<std::int32_t> count;  ///< `[sequences, kv_heads]` queries in the sum
  buffer<float> sums;          ///< `[sequences, kv_heads or query heads, head_dim]`

  /// Adds the step's queries of the block's head, (x, y) as (head, sequence). Collective.
  template <class B>
  KVPOLICY_KERNEL void add(B& block, buffer<std::int32_t const> open_begin) const {
    std::int64_t const list = static_cast<std::int64_t>(block.y()) * heads + block.x();
    std::int64_t const length = tokens.of(block, block.y());
    if (length == 0) return;
    std::int32_t const begin = block.global(open_begin)[block.y()];
    std::int32_t const before = block.global(count)[list];
    block.sync();  // every thread has read what thread 0 writes below
    bool const fresh = (carry == 1 && length - begin == 1) || before == 0 || carry == 0;
    auto const all = block.global(sums);
    std::int32_t const vectors = apart ? group : 1;
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < vectors * head_dim; i += B::threads) {
      std::int32_t const first = apart ? i / head_dim : 0;
      std::int32_t const d = i - first * head_dim;
      float sum = 0;
      if (!fresh) {
        float const carried = all[list * vectors * head_dim + i];
        sum = carry * carried;
      }
      for (std::int32_t g = first; g < (apart ? first + 1 : group); ++g) {
        sum += get(block, queries, queries.begin(block, block.y()) + (block.x() * group + g) * queries.head_stride + d);
      }
      all[list * vectors * head_dim + i] = sum;
    }
    if (block.thread() == 0) block.global(count)[list] = fresh ? 1 : before + 1;
  }
};

/// Takes in the step's queries, and the sentences that have closed since: one block a head and sequence, of a sentence a thread
/// has a channel of a part of the tokens.
template <element_type E>
struct sentence_take_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "sentence_take";
  struct arguments {
    batch_rows keys;
    token_lists retained;
    sentence_state state;
    sentence_units units;
    query_sums queries;
  };
  template <class B>
  struct shared {
    typename B::template array<float, 128 * 8> sums;
    typename B::template array<float, max_wide_dim> means;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    a.queries.add(block, a.state.open_begin);
    std::int64_t const list = static_cast<std::int64_t>(block.y()) * a.keys.heads + block.x();
    std::int32_t const units = block.global(a.state.units)[block.y()];
    std::int32_t folded = block.global(a.units.folded)[list];
    row_reader<E, B> const keys(block, a.keys, block.y());
    list_reader<B> const retained(block, a.retained, block.y(), block.x());
    if (retained.count() == 0 || folded >= units) return;
    auto const vectors = block.global(a.units.vectors.template as<E>());
    bool const spread = a.units.spread;
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
      // Sums over the sentence of f(x, channel), one for each channel: parts of the rows side by side, then added up.
      auto const each_channel = [&](auto f, auto store) {
        float sum[8] = {};
        for (std::int64_t r = begin + row; r < end && row < at_once; r += at_once) {
          float x[8];
          keys.load(keys.offset(block.x(), retained.token(r)), part, x);
          KVPOLICY_UNROLL
          for (int i = 0; i < 8; ++i) sum[i] += f(x[i], part * 8 + i);
        }
        KVPOLICY_UNROLL
        for (int i = 0; i < 8; ++i) s.sums[thread * 8 + i] = sum[i];
        block.sync();
        for (std::int32_t d = thread; d < a.keys.head_dim; d += B::threads) {  // of a sentence with nothing left: 0
          float all = 0;
          for (std::int32_t r = 0; r < at_once; ++r) {
            float const one = s.sums[(r * parts + d / 8) * 8 + d % 8];
            all += one;
          }
          store(d, end > begin ? all / static_cast<float>(end - begin) : 0);
        }
        block.sync();
      };
      std::int64_t const at =
          a.units.vectors.at(block, block.y(), block.x(), folded, spread ? 2 * a.keys.head_dim : a.keys.head_dim);
      each_channel([](float x, std::int32_t) { return x; },
                   [&](std::int32_t d, float mean) {
                     if (spread) s.means[d] = mean;
                     else vectors[at + d] = narrowed<E>(mean);
                   });
      if (spread) {
        each_channel(
            [&](float x, std::int32_t d) {
              if (d >= a.keys.head_dim) return 0.0f;
              float const mean = s.means[d];
              return (x - mean) * (x - mean);
            },
            [&](std::int32_t d, float variance) {
              float const mean = s.means[d];
              float const deviation = sqrtf(variance);
              vectors[at + d] = narrowed<E>(within(mean + deviation, largest(E)));
              vectors[at + a.keys.head_dim + d] = narrowed<E>(within(mean - deviation, largest(E)));
            });
      }
      if (thread == 0) block.global(a.units.index_end)[list * a.state.most + folded] = static_cast<std::int32_t>(end);
      begin = end;
      block.sync();
    }
    if (thread == 0) block.global(a.units.folded)[list] = units;
  }
};

}  // namespace kvpolicy::gpu::detail
