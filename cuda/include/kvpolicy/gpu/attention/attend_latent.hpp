// Decode attention over latent rows (MLA) on tensor cores: a row is a key, and its first 512 channels the value; it is read
// once.
#pragma once

#include "kvpolicy/gpu/attention/latent_warp.hpp"
#include "kvpolicy/gpu/base/tensor_queries.hpp"

namespace kvpolicy::gpu::detail {

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
  static constexpr int warps = latent::warps;
  static constexpr int value_chunks = latent::value_chunks;
  static constexpr int chunks = latent::chunks;
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
    latent_sums sum = {};
    std::int32_t parity = 0;
    // Splits take turns: which of them reads a token does not depend on the tokens behind it.
    for (std::int64_t turn = block.x(); turn < last; turn += a.splits) {
      rows.consume(s, parity, turn, states, sum);
      parity ^= 1;
    }
    rows.finish(s.last, splits, states, sum);
  }

 private:
  template <class B>
  struct warp_rows : latent_warp<B, Split> {
    using base = latent_warp<B, Split>;
    using base::a, base::block, base::channel, base::g, base::has, base::heads, base::t, base::tile, base::warp;
    row_reader<E, B> keys;
    list_reader<B> list;
    std::int64_t seen[heads_of_lane];
    tensor_queries<E, chunks> query;  ///< where they are not split, `part` has two heads

    KVPOLICY_KERNEL warp_rows(B& of, arguments const& given)
        : base(of, given), keys(of, given.keys, of.z()), list(of, given.lists, of.z(), heads.kv_head) {
      KVPOLICY_UNROLL
      for (int h = 0; h < heads_of_lane; ++h) seen[h] = g + 8 * h < heads.real ? heads.seen(block, a, list, g + 8 * h) : 0;
    }

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
                                 softmax_state<powers_of_two> (&states)[heads_of_lane], latent_sums& sum) {
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
  };
};

}  // namespace kvpolicy::gpu::detail
