// Decode attention over latent rows (MLA) on tensor cores: a row is a key, and its first 512 channels the value; it is read
// once.
#pragma once

#include "kvpolicy/gpu/attention/attend_split.hpp"
#include "kvpolicy/gpu/base/tensor_queries.hpp"

namespace kvpolicy::gpu::detail {

namespace latent {
inline constexpr std::int32_t value_dim = 512;
inline constexpr std::int32_t max_key_dim = 640;
}  // namespace latent

/// Splits of each list, 16 tokens a turn; the warps of a block share a row: 128 channels of the value each, and 32 of those
/// behind it, if they are there. Each reads its channels of 16 keys, adds up its part of the logits with the others', and
/// weighs the same registers as values. Lane l, g = l / 4 and t = l % 4, reads channels [8 (t + 4 c), + 8) of its warp's chunk
/// c, of tokens g and g + 8.
/// Split: queries and weights in two halves, as tensor_queries, 8 heads a tile. Else they have the rows' type, and there are
/// 16: heads g and g + 8 are a lane's.
template <element_type E, bool Split>
struct attend_latent_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "attend_latent";
  static constexpr bool wide = true;
  static constexpr int warps = 4;
  static constexpr int value_chunks = 4;  ///< of 32 channels, of a warp
  static constexpr int chunks = value_chunks + 1;
  static constexpr int heads_of_lane = Split ? 1 : 2;
  static constexpr int heads_of_tile = 8 * heads_of_lane;
  static constexpr std::int64_t at_once = 16;  ///< tokens
  using arguments = attend_arguments;
  template <class B>
  struct shared {
    /// A warp's part of the logits, of this turn and the one before: `[2, warps, heads of a lane, 4, lanes]`.
    typename B::template array<float, 2 * warps * heads_of_lane * 4 * 32> products;
    typename B::last_storage last;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    warp_rows<B> rows(block, a);
    std::int64_t const last = (rows.list.count() + at_once - 1) / at_once;
    std::int32_t const splits = last < 1 ? 1 : last < a.splits ? static_cast<std::int32_t>(last) : a.splits;
    if (static_cast<std::int32_t>(block.x()) >= splits) return;
    rows.load_queries();
    softmax_state<powers_of_two> states[heads_of_lane];
    float sum[value_chunks][4][4] = {};
    std::int32_t parity = 0;
    // Splits take turns: which of them reads a token does not depend on the tokens behind it.
    for (std::int64_t turn = block.x(); turn < last; turn += a.splits) {
      rows.consume(s, parity, turn, states, sum);
      parity ^= 1;
    }
    rows.finish(s, splits, states, sum);
  }

 private:
  template <class B>
  struct warp_rows {
    B& block;
    arguments const& a;
    attend_tile heads;
    decltype(std::declval<B&>().tile()) tile;
    std::int32_t g;
    std::int32_t t;
    std::int32_t warp;
    row_reader<E, B> keys;
    list_reader<B> list;
    std::int64_t seen[heads_of_lane];
    tensor_queries<E, chunks> query;  ///< where they are not split, `part` has two heads

    KVPOLICY_KERNEL warp_rows(B& of, arguments const& given)
        : block(of),
          a(given),
          heads(of, given, heads_of_tile),
          tile(of.tile()),
          g(static_cast<std::int32_t>(tile.lane()) >> 2),
          t(static_cast<std::int32_t>(tile.lane()) & 3),
          warp(static_cast<std::int32_t>(tile.index())),
          keys(of, given.keys, of.z()),
          list(of, given.lists, of.z(), heads.kv_head) {
      KVPOLICY_UNROLL
      for (int h = 0; h < heads_of_lane; ++h) seen[h] = g + 8 * h < heads.real ? heads.seen(block, a, list, g + 8 * h) : 0;
    }

    /// The first of a chunk's channels.
    KVPOLICY_KERNEL std::int32_t channel(int c) const {
      return c < value_chunks ? 32 * (value_chunks * warp + c) : latent::value_dim + 32 * warp;
    }
    KVPOLICY_KERNEL bool has(int c) const { return c < value_chunks || channel(c) < a.keys.head_dim; }

    KVPOLICY_KERNEL void load_queries() {
      float channels[heads_of_lane][chunks][8];
      KVPOLICY_UNROLL
      for (int h = 0; h < heads_of_lane; ++h) {
        bool const there = g + 8 * h < heads.real;
        std::int64_t const first = there ? heads.element(block, a, a.queries, g + 8 * h) + 8 * t : 0;
        KVPOLICY_UNROLL
        for (int c = 0; c < chunks; ++c) {
          if (there && has(c)) {
            get_eight(block, a.queries, first + channel(c), channels[h][c]);
          } else {
            KVPOLICY_UNROLL
            for (int i = 0; i < 8; ++i) channels[h][c][i] = 0;
          }
        }
      }
      if constexpr (Split) {
        query.take(tile, channels[0], a.scale * log2_of_e);
      } else {
        query.unit = a.scale * log2_of_e;
        KVPOLICY_UNROLL
        for (int c = 0; c < chunks; ++c) {
          KVPOLICY_UNROLL
          for (int pair = 0; pair < 4; ++pair) {
            KVPOLICY_UNROLL
            for (int h = 0; h < 2; ++h)
              query.part[c][pair / 2][2 * (pair % 2) + h] =
                  narrowed_pair<E>(channels[h][c][2 * pair], channels[h][c][2 * pair + 1]);
          }
        }
      }
    }

    /// Adds a turn's rows. Collective for the block.
    KVPOLICY_KERNEL void consume(shared<B>& s, std::int32_t parity, std::int64_t turn,
                                 softmax_state<powers_of_two> (&states)[heads_of_lane], float (&sum)[value_chunks][4][4]) {
      typename row_reader<E, B>::raw rows[2][chunks];
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        // Behind the list's end the last token is read again, and weighs nothing.
        std::int64_t const i = turn * at_once + 8 * r + g;
        std::int64_t const at = keys.offset(heads.kv_head, list.token(i < list.count() ? i : list.count() - 1));
        KVPOLICY_UNROLL
        for (int c = 0; c < chunks; ++c) {
          if (has(c)) rows[r][c] = keys.load_raw(at, channel(c) / 8 + t);
          else rows[r][c] = {};
        }
      }
      float logits[heads_of_lane][4];
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        float product[4] = {};
        query.multiply(tile, rows[r], product);
        KVPOLICY_UNROLL
        for (int i = 0; i < 2; ++i) {
          if constexpr (Split) logits[0][2 * r + i] = (product[i] + product[2 + i]) * query.unit;
          else logits[0][2 * r + i] = product[i] * query.unit, logits[1][2 * r + i] = product[2 + i] * query.unit;
        }
      }
      add_other_warps(s, parity, logits);
      std::uint32_t weights[4] = {};
      float kept[heads_of_lane];
      KVPOLICY_UNROLL
      for (int h = 0; h < heads_of_lane; ++h) {
        see(turn, h, logits[h]);
        kept[h] = states[h].raise(largest(states[h].most, logits[h]));
        states[h].total *= kept[h];
        KVPOLICY_UNROLL
        for (int r = 0; r < 2; ++r) {
          float const weight0 = states[h].weight(logits[h][2 * r]);
          float const weight1 = states[h].weight(logits[h][2 * r + 1]);
          states[h].total += weight0 + weight1;
          if constexpr (Split) split<E>(weight0, weight1, weights[2 * r], weights[2 * r + 1]);
          else weights[2 * r + h] = narrowed_pair<E>(weight0, weight1);
        }
      }
      bool const raised = kept[0] != 1 || kept[heads_of_lane - 1] != 1;
      if (tile.ballot(raised) != 0) {
        KVPOLICY_UNROLL
        for (int c = 0; c < value_chunks; ++c) {
          KVPOLICY_UNROLL
          for (int w = 0; w < 4; ++w) {
            KVPOLICY_UNROLL
            for (int i = 0; i < 4; ++i) sum[c][w][i] *= kept[(i / 2) % heads_of_lane];
          }
        }
      }
      KVPOLICY_UNROLL
      for (int c = 0; c < value_chunks; ++c) {
        KVPOLICY_UNROLL
        for (int w = 0; w < 4; ++w) {
          std::uint32_t const turned[2] = {tile.transpose(rows[0][c].word[0].word[w]),
                                           tile.transpose(rows[1][c].word[0].word[w])};
          tile.template multiply<E>(weights, turned, sum[c][w]);
        }
      }
    }

    /// Collective for the block, which takes turns at two buffers, as attend_tensor_body.
    KVPOLICY_KERNEL void add_other_warps(shared<B>& s, std::int32_t parity, float (&logits)[heads_of_lane][4]) const {
      auto const lane = static_cast<std::int32_t>(tile.lane());
      auto const at = [&](std::int32_t of, int h, int i) {
        return (((parity * warps + of) * heads_of_lane + h) * 4 + i) * 32 + lane;
      };
      KVPOLICY_UNROLL
      for (int h = 0; h < heads_of_lane; ++h) {
        KVPOLICY_UNROLL
        for (int i = 0; i < 4; ++i) s.products[at(warp, h, i)] = logits[h][i];
      }
      block.sync();
      KVPOLICY_UNROLL
      for (int h = 0; h < heads_of_lane; ++h) {
        KVPOLICY_UNROLL
        for (int i = 0; i < 4; ++i) {
          float all = 0;  // in one order, so that the warps agree to the bit
          KVPOLICY_UNROLL
          for (int of = 0; of < warps; ++of) {
            float const one = s.products[at(of, h, i)];
            all += one;
          }
          logits[h][i] = all;
        }
      }
    }

    /// What the model adds, and nothing of tokens that the head does not see.
    KVPOLICY_KERNEL void see(std::int64_t turn, int h, float (&logits)[4]) const {
      KVPOLICY_UNROLL
      for (int i = 0; i < 4; ++i) {
        std::int64_t const place = turn * at_once + 8 * (i / 2) + 2 * t + i % 2;
        if (place >= seen[h]) {
          logits[i] = 2 * no_logit;
        } else if (a.terms.change_logits()) {
          logits[i] = heads.changed(block, a, g + 8 * h, logits[i], list.token(place), heads.own(block, a, g + 8 * h));
        }
      }
    }
    KVPOLICY_KERNEL float largest(float most, float const (&logits)[4]) const {
      KVPOLICY_UNROLL
      for (int i = 0; i < 4; ++i) most = logits[i] > most ? logits[i] : most;
      KVPOLICY_UNROLL
      for (unsigned mask = 1; mask < 4; mask *= 2) {
        float const other = tile.shfl_xor(most, mask);
        most = other > most ? other : most;
      }
      return most;
    }

    /// A list's result; of a split its part, which the last of `splits` to come puts together.
    KVPOLICY_KERNEL void finish(shared<B>& s, std::int32_t splits, softmax_state<powers_of_two> (&states)[heads_of_lane],
                                float const (&sum)[value_chunks][4][4]) const {
      bool const there = a.out.rows.has(block, block.z());
      KVPOLICY_UNROLL
      for (int h = 0; h < heads_of_lane; ++h) {
        KVPOLICY_UNROLL
        for (unsigned mask = 1; mask < 4; mask *= 2) states[h].total += tile.shfl_xor(states[h].total, mask);
        std::int32_t const head = g + 8 * h;
        if (!there || head >= heads.real) continue;
        if (splits == 1) write(head, states[h], sum);
        else write_part(head, states[h], sum);
      }
      std::int64_t const of = static_cast<std::int64_t>(block.z()) * a.keys.heads * a.tiles + block.y();
      if (splits > 1 && block.last_of(s.last, a.counters, of, splits) && there)
        merge_splits<latent::value_dim>(block, a, heads, splits);
    }

    /// Calls each(channel, sum) for the lane's channels of a head.
    template <class Each>
    KVPOLICY_KERNEL void each_channel(std::int32_t head, float const (&sum)[value_chunks][4][4], Each each) const {
      KVPOLICY_UNROLL
      for (int c = 0; c < value_chunks; ++c) {
        KVPOLICY_UNROLL
        for (int w = 0; w < 4; ++w) {
          KVPOLICY_UNROLL
          for (int i = 0; i < 2; ++i) {
            float const weighted = Split ? sum[c][w][i] + sum[c][w][2 + i] : head < 8 ? sum[c][w][i] : sum[c][w][2 + i];
            each(channel(c) + 8 * t + 2 * w + i, weighted);
          }
        }
      }
    }
    KVPOLICY_KERNEL void write(std::int32_t head, softmax_state<powers_of_two> state,
                               float const (&sum)[value_chunks][4][4]) const {
      float share = 1;
      if (a.terms.sinks.data != nullptr) {
        float const most = state.most;
        state.merge(sink_of(block, a, heads, head), 1);
        share = powers_of_two::of(most - state.most);
      }
      std::int64_t const at = heads.element(block, a, a.out, head);
      each_channel(head, sum, [&](std::int32_t d, float weighted) {
        put(block, a.out, at + d, state.total == 0 ? 0.0f : weighted * share / state.total);
      });
      if (warp == 0 && t == 0 && a.log_sum_exp.data != nullptr)
        block.global(a.log_sum_exp)[heads.row(a, block.z(), head)] = log_sum_exp(state.most, state.total);
    }
    KVPOLICY_KERNEL void write_part(std::int32_t head, softmax_state<powers_of_two> const& state,
                                    float const (&sum)[value_chunks][4][4]) const {
      auto const partial = block.global(a.partial);
      std::int64_t const at = (heads.row(a, block.z(), head) * a.splits + block.x()) * (latent::value_dim + 2);
      each_channel(head, sum, [&](std::int32_t d, float weighted) { partial[at + 2 + d] = weighted; });
      if (warp == 0 && t == 0) {
        partial[at] = state.most;
        partial[at + 1] = state.total;
      }
    }
  };
};

}  // namespace kvpolicy::gpu::detail
