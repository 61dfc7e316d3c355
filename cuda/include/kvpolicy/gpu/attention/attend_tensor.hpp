// Decode attention over listed tokens on tensor cores: the same splits as attend_body, 16 tokens a warp and turn.
#pragma once

#include "kvpolicy/gpu/attention/attend_split.hpp"
#include "kvpolicy/gpu/base/tensor_queries.hpp"

namespace kvpolicy::gpu::detail {

/// Rows as tensor_queries; weights in two halves like them. Of lane l, g = l / 4 and t = l % 4: it reads channels
/// [8 (t + 4 c), + 8) of the keys and values of tokens g and g + 8 of a turn, has those channels of query head g's sum, and the
/// logits of tokens 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. Of rows above 128 channels a warp has a half, and tells another its
/// part of the logits: one alone would not have the registers.
template <element_type E, int Chunks>
struct attend_tensor_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "attend_tensor";
  static constexpr bool wide = false;
  static constexpr int halves = Chunks > 4 ? 2 : 1;     ///< of a row
  static constexpr int own = Chunks / halves;           ///< chunks that a warp has
  static constexpr int groups = threads / 32 / halves;  ///< of warps that share tokens
  static constexpr int heads_of_tile = 8;
  static constexpr std::int64_t at_once = 16;  ///< tokens
  using arguments = attend_arguments;
  template <class B>
  struct shared : attend_shared<B, heads_of_tile, groups, 32 * Chunks> {
    /// Logits from a warp's half of the channels, of this turn and the one before: `[2, warps, 4, lanes]`, or none.
    typename B::template array<float, halves == 1 ? 1 : 2 * threads * 4> products;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    warp_rows<B> const rows(block, a);
    std::int64_t const last = (rows.list.count() + at_once - 1) / at_once;
    std::int32_t const splits = shared<B>::working(a, last);
    if (static_cast<std::int32_t>(block.x()) >= splits) return;
    float channels[own][8];
    tensor_queries<E, own>::fetch(block, a.queries, rows.heads.element(block, a, a.queries, rows.g) + 32 * own * rows.half,
                                  rows.g < rows.heads.real, channels);
    std::int64_t const seen = rows.heads.seen(block, a, rows.list, rows.g);
    float sum[own][4][4] = {};
    softmax_state<powers_of_two> state;
    // Splits take turns, too: which of them reads a token does not depend on the tokens behind it, nor does a query's result.
    std::int64_t const step = static_cast<std::int64_t>(groups) * a.splits;
    std::int64_t const first = static_cast<std::int64_t>(block.x()) * groups + rows.group;
    // Warps that wait for each other take equally many turns, the last of them behind the list's end.
    std::int64_t const until = halves == 1 ? last : last + rows.group;
    place next = {};
    if (first < until) next = rows.place_of(first);
    tensor_queries<E, own> query;
    query.take(rows.tile, channels, a.scale * log2_of_e);
    std::int32_t parity = 0;
    for (std::int64_t turn = first; turn < until; turn += step) {
      turn_rows<B> const mine = rows.fetch(next);
      if (turn + step < until) next = rows.place_of(turn + step);
      std::int64_t const behind = seen - turn * at_once;
      rows.consume(s, parity, mine, static_cast<std::int32_t>(behind < at_once ? behind : at_once), query, state, sum);
      parity ^= 1;
    }
    rows.merge_block(s, state, sum);
    s.finish(block, a, rows.heads, splits);
  }

 private:
  struct place {
    std::int64_t key[2];
    std::int64_t value[2];
  };
  /// Two keys and two values of a lane, as they were read.
  template <class B>
  struct turn_rows {
    typename row_reader<E, B>::raw key[2][own];
    typename row_reader<E, B>::raw value[2][own];
  };

  /// What a warp reads, and what its lane does of that.
  template <class B>
  struct warp_rows {
    B& block;
    arguments const& a;
    attend_tile heads;
    decltype(std::declval<B&>().tile()) tile;
    std::int32_t g;
    std::int32_t t;
    std::int32_t half;   ///< the row's, that this warp has
    std::int32_t group;  ///< its warps
    row_reader<E, B> keys;
    row_reader<E, B> values;
    list_reader<B> list;

    KVPOLICY_KERNEL warp_rows(B& of, arguments const& given)
        : block(of),
          a(given),
          heads(of, given, heads_of_tile),
          tile(of.tile()),
          g(static_cast<std::int32_t>(tile.lane()) >> 2),
          t(static_cast<std::int32_t>(tile.lane()) & 3),
          half(halves == 1 ? 0 : static_cast<std::int32_t>(tile.index()) % halves),
          group(static_cast<std::int32_t>(tile.index()) / halves),
          keys(of, given.keys, of.z()),
          values(of, given.values, of.z()),
          list(of, given.lists, of.z(), heads.kv_head) {}

    /// Behind the list's end the last token is read again, and weighs nothing.
    KVPOLICY_KERNEL place place_of(std::int64_t turn) const {
      place made;
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        std::int64_t const i = turn * at_once + 8 * r + g;
        std::int64_t const token = list.token(i < list.count() ? i : list.count() - 1);
        made.key[r] = keys.offset(heads.kv_head, token);
        made.value[r] = values.offset(heads.kv_head, token);
      }
      return made;
    }

    KVPOLICY_KERNEL turn_rows<B> fetch(place const& at) const {
      turn_rows<B> made;
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        KVPOLICY_UNROLL
        for (int c = 0; c < own; ++c) made.key[r][c] = keys.load_raw(at.key[r], t + 4 * (c + own * half));
        KVPOLICY_UNROLL
        for (int c = 0; c < own; ++c) made.value[r][c] = values.load_raw(at.value[r], t + 4 * (c + own * half));
      }
      return made;
    }

    /// Adds a turn's rows, of which the lane's query sees the first `left`.
    KVPOLICY_KERNEL void consume(shared<B>& s, std::int32_t parity, turn_rows<B> const& rows, std::int32_t left,
                                 tensor_queries<E, own> const& query, softmax_state<powers_of_two>& state,
                                 float (&sum)[own][4][4]) const {
      float logit[4];
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        float product[4] = {};
        query.multiply(tile, rows.key[r], product);
        KVPOLICY_UNROLL
        for (int i = 0; i < 2; ++i) logit[2 * r + i] = (product[i] + product[2 + i]) * query.unit;
      }
      if constexpr (halves > 1) add_other_half(s, parity, logit);
      KVPOLICY_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (8 * (i / 2) + 2 * t + i % 2 >= left) logit[i] = 2 * no_logit;
      }
      float more = state.most;
      KVPOLICY_UNROLL
      for (int i = 0; i < 4; ++i) more = logit[i] > more ? logit[i] : more;
      KVPOLICY_UNROLL
      for (unsigned mask = 1; mask < 4; mask *= 2) {
        float const other = tile.shfl_xor(more, mask);
        more = other > more ? other : more;
      }
      float const kept = state.raise(more);
      if (tile.ballot(kept != 1) != 0) {
        state.total *= kept;
        KVPOLICY_UNROLL
        for (int c = 0; c < own; ++c) {
          KVPOLICY_UNROLL
          for (int w = 0; w < 4; ++w) {
            KVPOLICY_UNROLL
            for (int i = 0; i < 4; ++i) sum[c][w][i] *= kept;
          }
        }
      }
      std::uint32_t weights[4];
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        float const weight0 = state.weight(logit[2 * r]);
        float const weight1 = state.weight(logit[2 * r + 1]);
        state.total += weight0 + weight1;
        split<E>(weight0, weight1, weights[2 * r], weights[2 * r + 1]);
      }
      KVPOLICY_UNROLL
      for (int c = 0; c < own; ++c) {
        KVPOLICY_UNROLL
        for (int w = 0; w < 4; ++w) {
          std::uint32_t const turned[2] = {tile.transpose(rows.value[0][c].word[0].word[w]),
                                           tile.transpose(rows.value[1][c].word[0].word[w])};
          tile.template multiply<E>(weights, turned, sum[c][w]);
        }
      }
    }

    /// Adds what the other warp of the group says. Collective for the block, which takes turns at two buffers: who writes one
    /// again knows from the other's wait that it was read.
    KVPOLICY_KERNEL void add_other_half(shared<B>& s, std::int32_t parity, float (&logit)[4]) const {
      auto const lane = static_cast<std::int32_t>(tile.lane());
      auto const warp = static_cast<std::int32_t>(tile.index());
      std::int32_t const buffer = parity * static_cast<std::int32_t>(threads) * 4;
      KVPOLICY_UNROLL
      for (int i = 0; i < 4; ++i) s.products[buffer + (warp * 4 + i) * 32 + lane] = logit[i];
      block.sync();
      KVPOLICY_UNROLL
      for (int i = 0; i < 4; ++i) logit[i] += s.products[buffer + ((warp ^ 1) * 4 + i) * 32 + lane];
    }

    /// Adds the sums of the warps, in order.
    KVPOLICY_KERNEL void merge_block(shared<B>& s, softmax_state<powers_of_two>& state, float const (&sum)[own][4][4]) const {
      KVPOLICY_UNROLL
      for (unsigned mask = 1; mask < 4; mask *= 2) state.total += tile.shfl_xor(state.total, mask);
      if (t == 0 && half == 0) {
        s.most[group * heads_of_tile + g] = state.most;
        s.total[group * heads_of_tile + g] = state.total;
      }
      block.sync();
      float const mine = powers_of_two::of(state.most - s.largest(g));
      for (int v = 0; v < groups; ++v) {
        if (group == v) {
          KVPOLICY_UNROLL
          for (int c = 0; c < own; ++c) {
            KVPOLICY_UNROLL
            for (int w = 0; w < 4; ++w) {
              KVPOLICY_UNROLL
              for (int i = 0; i < 2; ++i) {
                std::int32_t const at = g * 32 * Chunks + 8 * (t + 4 * (c + own * half)) + 2 * w + i;
                float before = 0;
                if (v > 0) before = s.sums[at];
                s.sums[at] = before + mine * (sum[c][w][i] + sum[c][w][2 + i]);
              }
            }
          }
        }
        block.sync();
      }
    }
  };
};

}  // namespace kvpolicy::gpu::detail
