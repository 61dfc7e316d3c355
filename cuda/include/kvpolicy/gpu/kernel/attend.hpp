// Decode attention over listed tokens where they lie, split over the list.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/kernel/attend_split.hpp"

namespace kvpolicy::gpu {

/// Splits of each list; Group query heads of a KV head share the loads of its rows, fewer in the last of `tiles` groups. A
/// warp's lanes share rows, warps take turns; each keeps a softmax of its own until the end.
/// Packed: 16-byte loads, the next turn's on their way while this one's are worked on.
template <element_type E, int Group, bool Packed = true>
struct attend_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "attend";
  static constexpr int warps = 4;
  using arguments = attend_arguments;
  template <class B>
  using shared = attend_shared<B, Group, warps, 256>;

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    attend_tile const heads(block, a, Group);
    unsigned const kv_head = heads.kv_head;
    auto const tile = block.tile();
    row_lanes const share(a.keys.parts());
    auto const lane = static_cast<std::int32_t>(tile.lane());
    std::int32_t const part = lane & (share.lanes - 1);
    bool const reads = part < a.keys.parts();
    row_reader<E, B> const keys(block, a.keys, block.z());
    row_reader<E, B> const values(block, a.values, block.z());
    list_reader<B> const list(block, a.lists, block.z(), kv_head);

    float query[Group][8];
    float sum[Group][8];
    float most[Group];
    float total[Group];
    KVPOLICY_UNROLL
    for (int g = 0; g < Group; ++g) {
      most[g] = no_logit;
      total[g] = 0;
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) {
        sum[g][i] = 0;
        query[g][i] = 0;
        if (g < heads.real && part * 8 + i < a.keys.head_dim) {
          query[g][i] =
              get(block, a.queries, heads.element(a, a.queries, block.z(), g) + part * 8 + i) * (a.scale * 1.44269504f);
        }
      }
    }

    // Splits take turns, too: which of them reads a token does not depend on the tokens behind it, nor does a query's result.
    std::int64_t const at_once = share.rows_of_warp() * 2;
    std::int64_t const last = (list.count() + at_once - 1) / at_once;
    std::int64_t const step = static_cast<std::int64_t>(warps) * a.splits;
    std::int64_t const all_see =
        heads.token(a, heads.real - 1) < a.brought.of(block, block.z()) ? heads.seen(block, a, list, 0) : 0;
    struct turn_rows {
      typename row_reader<E, B>::raw key[2];
      typename row_reader<E, B>::raw value[2];
      float key_apart[Packed ? 1 : 2][8];
      float value_apart[Packed ? 1 : 2][8];
      bool there[2];
    };
    auto const fetch = [&](std::int64_t turn) {
      turn_rows rows = {};
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        std::int64_t const i = turn * at_once + r * share.rows_of_warp() + lane / share.lanes;
        rows.there[r] = turn < last && i < list.count();
        if (!rows.there[r] || !reads) continue;
        std::int64_t const token = list.token(i);
        if constexpr (Packed) {
          rows.key[r] = keys.load_raw(keys.offset(kv_head, token), part);
          rows.value[r] = values.load_raw(values.offset(kv_head, token), part);
        } else {
          keys.load(keys.offset(kv_head, token), part, rows.key_apart[r]);
          values.load(values.offset(kv_head, token), part, rows.value_apart[r]);
        }
      }
      return rows;
    };
    std::int64_t const first = static_cast<std::int64_t>(block.x()) * warps + tile.index();
    turn_rows next = fetch(first);
    for (std::int64_t turn = first; turn < last; turn += step) {
      turn_rows const rows = next;
      next = fetch(turn + step);
      float key[2][8];
      float value[2][8];
      bool const(&there)[2] = rows.there;
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        if constexpr (Packed) {
          row_reader<E, B>::widen(rows.key[r], key[r]);
          row_reader<E, B>::widen(rows.value[r], value[r]);
        } else {
          KVPOLICY_UNROLL
          for (int c = 0; c < 8; ++c) {
            key[r][c] = rows.key_apart[r][c];
            value[r][c] = rows.value_apart[r][c];
          }
        }
      }
      bool const masked = (turn + 1) * at_once > all_see;
      KVPOLICY_UNROLL
      for (int g = 0; g < Group; ++g) {
        float logit[2];
        std::int64_t seen = INT64_MAX;
        if (masked && g < heads.real) seen = heads.seen(block, a, list, g);
        KVPOLICY_UNROLL
        for (int r = 0; r < 2; ++r) {
          float dot = 0;
          KVPOLICY_UNROLL
          for (int c = 0; c < 8; ++c) dot += query[g][c] * key[r][c];
          dot = lane_sum(tile, dot, share.lanes);
          bool const sees = turn * at_once + r * share.rows_of_warp() + lane / share.lanes < seen;
          logit[r] = there[r] && sees ? dot : 2 * no_logit;
        }
        float more = most[g];
        more = logit[0] > more ? logit[0] : more;
        more = logit[1] > more ? logit[1] : more;
        float const kept = exp2f(most[g] - more);
        float const weight0 = exp2f(logit[0] - more);
        float const weight1 = exp2f(logit[1] - more);
        most[g] = more;
        total[g] = total[g] * kept + (weight0 + weight1);
        KVPOLICY_UNROLL
        for (int c = 0; c < 8; ++c) sum[g][c] = sum[g][c] * kept + (weight0 * value[0][c] + weight1 * value[1][c]);
      }
    }

    // Rows of a warp together, then the warps in order.
    KVPOLICY_UNROLL
    for (int g = 0; g < Group; ++g) {
      for (std::int32_t mask = share.lanes; mask < 32; mask *= 2) {
        auto const by = static_cast<unsigned>(mask);
        float const other_most = tile.shfl_xor(most[g], by);
        float const other_total = tile.shfl_xor(total[g], by);
        float const more = other_most > most[g] ? other_most : most[g];
        float const mine = exp2f(most[g] - more);
        float const other = exp2f(other_most - more);
        total[g] = total[g] * mine + other_total * other;
        most[g] = more;
        KVPOLICY_UNROLL
        for (int c = 0; c < 8; ++c) sum[g][c] = sum[g][c] * mine + tile.shfl_xor(sum[g][c], by) * other;
      }
      if (lane == 0) {
        s.most[tile.index() * Group + g] = most[g];
        s.total[tile.index() * Group + g] = total[g];
      }
    }
    block.sync();
    for (int w = 0; w < warps; ++w) {
      if (static_cast<int>(tile.index()) == w && lane < share.lanes && reads) {
        KVPOLICY_UNROLL
        for (int g = 0; g < Group; ++g) {
          float const mine = exp2f(most[g] - s.largest(g));
          KVPOLICY_UNROLL
          for (int c = 0; c < 8; ++c) {
            std::int32_t const at = g * 256 + part * 8 + c;
            float before = 0;
            if (w > 0) before = s.sums[at];
            s.sums[at] = before + mine * sum[g][c];
          }
        }
      }
      block.sync();
    }
    s.finish(block, a, heads);
  }
};

}  // namespace kvpolicy::gpu
