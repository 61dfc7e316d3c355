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
    attend_tile const heads(block, a, heads_of_tile);
    auto const tile = block.tile();
    auto const g = static_cast<std::int32_t>(tile.lane()) >> 2;
    auto const t = static_cast<std::int32_t>(tile.lane()) & 3;
    row_reader<E, B> const keys(block, a.keys, block.z());
    row_reader<E, B> const values(block, a.values, block.z());
    list_reader<B> const list(block, a.lists, block.z(), heads.kv_head);

    float channels[Chunks][8];
    tensor_queries<E, Chunks>::fetch(block, a.queries, heads.element(a, a.queries, block.z(), g), g < heads.real, channels);
    std::int64_t const seen = heads.seen(block, a, list, g);

    float sum[Chunks][4][4] = {};
    softmax_state<powers_of_two> state;
    // Splits take turns, too: which of them reads a token does not depend on the tokens behind it, nor does a query's result.
    std::int64_t const last = (list.count() + at_once - 1) / at_once;
    std::int64_t const step = static_cast<std::int64_t>(warps) * a.splits;
    std::int64_t const first = static_cast<std::int64_t>(block.x()) * warps + tile.index();
    struct place {
      std::int64_t key[2];
      std::int64_t value[2];
    };
    // Behind the list's end the last token is read again, and weighs nothing.
    auto const place_of = [&](std::int64_t turn) {
      place made;
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        std::int64_t const i = turn * at_once + 8 * r + g;
        std::int64_t const token = list.token(i < list.count() ? i : list.count() - 1);
        made.key[r] = keys.offset(heads.kv_head, token);
        made.value[r] = values.offset(heads.kv_head, token);
      }
      return made;
    };
    place next = {};
    if (first < last) next = place_of(first);
    tensor_queries<E, Chunks> query;
    query.take(tile, channels, a.scale * 1.44269504f);
    for (std::int64_t turn = first; turn < last; turn += step) {
      typename row_reader<E, B>::raw key[2][Chunks];
      typename row_reader<E, B>::raw value[2][Chunks];
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        KVPOLICY_UNROLL
        for (int c = 0; c < Chunks; ++c) key[r][c] = keys.load_raw(next.key[r], t + 4 * c);
        KVPOLICY_UNROLL
        for (int c = 0; c < Chunks; ++c) value[r][c] = values.load_raw(next.value[r], t + 4 * c);
      }
      if (turn + step < last) next = place_of(turn + step);

      std::int64_t const behind = seen - turn * at_once;
      auto const left = static_cast<std::int32_t>(behind < at_once ? behind : at_once);
      float logit[4];
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        float product[4] = {};
        query.multiply(tile, key[r], product);
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
          std::uint32_t const turned[2] = {tile.transpose(value[0][c].word[0].word[w]),
                                           tile.transpose(value[1][c].word[0].word[w])};
          tile.template multiply<E>(weights, turned, sum[c][w]);
        }
      }
    }

    // The warps in order.
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
    s.finish(block, a, heads);
  }
};

}  // namespace kvpolicy::gpu::detail
