// Decode attention over listed tokens on tensor cores: the same splits as attend_body, 16 tokens a warp and turn.
#pragma once

#include "kvpolicy/gpu/attention/attend_split.hpp"
#include "kvpolicy/gpu/base/tensor_queries.hpp"

namespace kvpolicy::gpu::detail {

/// Rows as tensor_queries; weights in two halves like them. Of lane l, g = l / 4 and t = l % 4: it reads channels
/// [8 (t + 4 c), + 8) of the keys and values of tokens g and g + 8 of a turn, has those channels of query head g's sum, and the
/// logits of tokens 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
template <element_type E, int Chunks>
struct attend_tensor_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "attend_tensor";
  static constexpr int warps = 4;
  static constexpr int heads_of_tile = 8;
  static constexpr std::int64_t at_once = 16;  ///< tokens
  using arguments = attend_arguments;
  template <class B>
  using shared = attend_shared<B, heads_of_tile, warps, 32 * Chunks>;

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    warp_rows<B> const rows(block, a);
    std::int64_t const last = (rows.list.count() + at_once - 1) / at_once;
    std::int32_t const splits = shared<B>::working(a, last);
    if (static_cast<std::int32_t>(block.x()) >= splits) return;
    float channels[Chunks][8];
    tensor_queries<E, Chunks>::fetch(block, a.queries, rows.heads.element(block, a, a.queries, rows.g),
                                     rows.g < rows.heads.real, channels);
    std::int64_t const seen = rows.heads.seen(block, a, rows.list, rows.g);
    float sum[Chunks][4][4] = {};
    softmax_state<powers_of_two> state;
    // Splits take turns, too: which of them reads a token does not depend on the tokens behind it, nor does a query's result.
    std::int64_t const step = static_cast<std::int64_t>(warps) * a.splits;
    std::int64_t const first = static_cast<std::int64_t>(block.x()) * warps + rows.tile.index();
    place next = {};
    if (first < last) next = rows.place_of(first);
    tensor_queries<E, Chunks> query;
    query.take(rows.tile, channels, a.scale * log2_of_e);
    for (std::int64_t turn = first; turn < last; turn += step) {
      turn_rows<B> const mine = rows.fetch(next);
      if (turn + step < last) next = rows.place_of(turn + step);
      std::int64_t const behind = seen - turn * at_once;
      rows.consume(mine, static_cast<std::int32_t>(behind < at_once ? behind : at_once), query, state, sum);
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
    typename row_reader<E, B>::raw key[2][Chunks];
    typename row_reader<E, B>::raw value[2][Chunks];
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
        for (int c = 0; c < Chunks; ++c) made.key[r][c] = keys.load_raw(at.key[r], t + 4 * c);
        KVPOLICY_UNROLL
        for (int c = 0; c < Chunks; ++c) made.value[r][c] = values.load_raw(at.value[r], t + 4 * c);
      }
      return made;
    }

    /// Adds a turn's rows, of which the lane's query sees the first `left`.
    KVPOLICY_KERNEL void consume(turn_rows<B> const& rows, std::int32_t left, tensor_queries<E, Chunks> const& query,
                                 softmax_state<powers_of_two>& state, float (&sum)[Chunks][4][4]) const {
      float logit[4];
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        float product[4] = {};
        query.multiply(tile, rows.key[r], product);
        KVPOLICY_UNROLL
        for (int i = 0; i < 2; ++i) {
          logit[2 * r + i] = 8 * r + 2 * t + i < left ? (product[i] + product[2 + i]) * query.unit : 2 * no_logit;
        }
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
        for (int c = 0; c < Chunks; ++c) {
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
      for (int c = 0; c < Chunks; ++c) {
        KVPOLICY_UNROLL
        for (int w = 0; w < 4; ++w) {
          std::uint32_t const turned[2] = {tile.transpose(rows.value[0][c].word[0].word[w]),
                                           tile.transpose(rows.value[1][c].word[0].word[w])};
          tile.template multiply<E>(weights, turned, sum[c][w]);
        }
      }
    }

    /// Adds the sums of the warps, in order.
    KVPOLICY_KERNEL void merge_block(shared<B>& s, softmax_state<powers_of_two>& state,
                                     float const (&sum)[Chunks][4][4]) const {
      KVPOLICY_UNROLL
      for (unsigned mask = 1; mask < 4; mask *= 2) state.total += tile.shfl_xor(state.total, mask);
      if (t == 0) {
        s.most[tile.index() * heads_of_tile + g] = state.most;
        s.total[tile.index() * heads_of_tile + g] = state.total;
      }
      block.sync();
      float const mine = powers_of_two::of(state.most - s.largest(g));
      for (int v = 0; v < warps; ++v) {
        if (static_cast<int>(tile.index()) == v) {
          KVPOLICY_UNROLL
          for (int c = 0; c < Chunks; ++c) {
            KVPOLICY_UNROLL
            for (int w = 0; w < 4; ++w) {
              KVPOLICY_UNROLL
              for (int i = 0; i < 2; ++i) {
                std::int32_t const at = g * 32 * Chunks + 8 * (t + 4 * c) + 2 * w + i;
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
