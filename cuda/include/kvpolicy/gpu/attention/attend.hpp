// Decode attention over listed tokens where they lie, split over the list.
#pragma once

#include <utility>

#include "kvpolicy/gpu/attention/attend_split.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// Splits of each list; Group query heads of a KV head share the loads of its rows, fewer in the last of `tiles` groups. A
/// warp's lanes share rows, warps take turns; each keeps a softmax of its own until the end.
/// Packed: 16-byte loads, the next turn's on their way while this one's are worked on. Terms: the model adds to logits. Wide:
/// rows above 256 channels, or values of another width than keys; a lane has 8 channels of each 256, whatever packed.
template <element_type E, int Group, bool Packed = true, bool Terms = false, bool Wide = false>
struct attend_body {
  static_assert(!Wide || !Packed);
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "attend";
  static constexpr bool wide = Wide;
  static constexpr int warps = 4;
  static constexpr int sets = Wide ? max_wide_dim / 256 : 1;  ///< of 8 channels
  using arguments = attend_arguments;
  using state = softmax_state<powers_of_two, 8 * sets>;
  template <class B>
  using shared = attend_shared<B, Group, warps, 256 * sets>;

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    warp_rows<B> const rows(block, a);
    std::int32_t const splits = shared<B>::working(a, rows.turns());
    if (static_cast<std::int32_t>(block.x()) >= splits) return;
    float query[Group][8 * sets];
    rows.load_query(query);
    state states[Group];
    // Splits take turns, too: which of them reads a token does not depend on the tokens behind it, nor does a query's result.
    std::int64_t const step = static_cast<std::int64_t>(warps) * a.splits;
    std::int64_t const first = static_cast<std::int64_t>(block.x()) * warps + rows.tile.index();
    std::int64_t const all_see = rows.seen_by_all();
    if constexpr (Wide) {  // two turns' rows would not have the registers
      for (std::int64_t turn = first; turn < rows.turns(); turn += step)
        rows.consume(rows.fetch(turn), turn, (turn + 1) * rows.at_once() > all_see, query, states);
    } else {
      auto next = rows.fetch(first);
      for (std::int64_t turn = first; turn < rows.turns(); turn += step) {
        auto const mine = next;
        next = rows.fetch(turn + step);
        rows.consume(mine, turn, (turn + 1) * rows.at_once() > all_see, query, states);
      }
    }
    rows.merge_warp(s, states);
    rows.merge_block(s, states);
    s.finish(block, a, rows.heads, splits);
  }

 private:
  /// Two rows of a lane, as they were read.
  template <class B>
  struct turn_rows {
    typename row_reader<E, B>::raw key[2];
    typename row_reader<E, B>::raw value[2];
    float key_apart[Packed ? 1 : 2][sets][8];
    float value_apart[Packed ? 1 : 2][sets][8];
    bool there[2];
  };

  /// What a warp reads, and what its lane does of that.
  template <class B>
  struct warp_rows {
    B& block;
    arguments const& a;
    attend_tile heads;
    decltype(std::declval<B&>().tile()) tile;
    row_lanes share;
    std::int32_t lane;
    std::int32_t part;
    bool reads;
    row_reader<E, B> keys;
    row_reader<E, B> values;
    list_reader<B> list;

    KVPOLICY_KERNEL warp_rows(B& of, arguments const& given)
        : block(of),
          a(given),
          heads(of, given, Group),
          tile(of.tile()),
          share(widest(given)),
          lane(static_cast<std::int32_t>(tile.lane())),
          part(lane & (share.lanes - 1)),
          reads(part < widest(given)),
          keys(of, given.keys, of.z()),
          values(of, given.values, of.z()),
          list(of, given.lists, of.z(), heads.kv_head) {}

    KVPOLICY_KERNEL static std::int32_t widest(arguments const& given) {
      return Wide && given.values.parts() > given.keys.parts() ? given.values.parts() : given.keys.parts();
    }
    KVPOLICY_KERNEL std::int64_t at_once() const { return share.rows_of_warp() * 2; }
    KVPOLICY_KERNEL std::int64_t turns() const { return (list.count() + at_once() - 1) / at_once(); }
    /// The place in the list of a lane's r-th row of a turn.
    KVPOLICY_KERNEL std::int64_t place(std::int64_t turn, int r) const {
      return turn * at_once() + r * share.rows_of_warp() + lane / share.lanes;
    }
    /// How many of the list's tokens every query sees.
    KVPOLICY_KERNEL std::int64_t seen_by_all() const {
      return heads.token(a, heads.real - 1) < a.brought.of(block, block.z()) ? heads.seen(block, a, list, 0) : 0;
    }

    KVPOLICY_KERNEL void load_query(float (&query)[Group][8 * sets]) const {
      KVPOLICY_UNROLL
      for (int g = 0; g < Group; ++g) {
        KVPOLICY_UNROLL
        for (int i = 0; i < 8 * sets; ++i) {
          std::int32_t const channel = part * 8 + i % 8 + 256 * (i / 8);
          query[g][i] = 0;
          if (g < heads.real && channel < a.keys.head_dim) {
            query[g][i] = get(block, a.queries, heads.element(block, a, a.queries, g) + channel) * (a.scale * log2_of_e);
          }
        }
      }
    }

    KVPOLICY_KERNEL turn_rows<B> fetch(std::int64_t turn) const {
      turn_rows<B> rows = {};
      std::int64_t const last = turns();
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        std::int64_t const i = place(turn, r);
        rows.there[r] = turn < last && i < list.count();
        if (!rows.there[r] || !reads) continue;
        std::int64_t const token = list.token(i);
        if constexpr (Packed) {
          rows.key[r] = keys.load_raw(keys.offset(heads.kv_head, token), part);
          rows.value[r] = values.load_raw(values.offset(heads.kv_head, token), part);
        } else {
          std::int64_t const key = keys.offset(heads.kv_head, token);
          std::int64_t const value = values.offset(heads.kv_head, token);
          KVPOLICY_UNROLL
          for (int set = 0; set < sets; ++set) {
            if (!Wide || part + 32 * set < a.keys.parts()) keys.load(key, part + 32 * set, rows.key_apart[r][set]);
            if (!Wide || part + 32 * set < a.values.parts()) values.load(value, part + 32 * set, rows.value_apart[r][set]);
          }
        }
      }
      return rows;
    }

    /// Adds a turn's rows; masked: some query does not see all of them.
    KVPOLICY_KERNEL void consume(turn_rows<B> const& rows, std::int64_t turn, bool masked,
                                 float const (&query)[Group][8 * sets], state (&states)[Group]) const {
      float key[2][8 * sets];
      float value[2][8 * sets];
      KVPOLICY_UNROLL
      for (int r = 0; r < 2; ++r) {
        if constexpr (Packed) {
          row_reader<E, B>::widen(rows.key[r], key[r]);
          row_reader<E, B>::widen(rows.value[r], value[r]);
        } else {
          KVPOLICY_UNROLL
          for (int c = 0; c < 8 * sets; ++c) {
            key[r][c] = rows.key_apart[r][c / 8][c % 8];
            value[r][c] = rows.value_apart[r][c / 8][c % 8];
          }
        }
      }
      KVPOLICY_UNROLL
      for (int g = 0; g < Group; ++g) {
        float logits[2];
        std::int64_t seen = INT64_MAX;
        if (masked && g < heads.real) seen = heads.seen(block, a, list, g);
        KVPOLICY_UNROLL
        for (int r = 0; r < 2; ++r) {
          float dot = 0;
          KVPOLICY_UNROLL
          for (int c = 0; c < 8 * sets; ++c) dot += query[g][c] * key[r][c];
          dot = lane_sum(tile, dot, share.lanes);
          bool const sees = rows.there[r] && place(turn, r) < seen;
          if constexpr (Terms) {
            if (sees && g < heads.real)
              dot = heads.changed(block, a, g, dot, list.token(place(turn, r)), heads.own(block, a, g));
          }
          logits[r] = sees ? dot : 2 * no_logit;
        }
        states[g].add(logits, [&](int r, int c) { return value[r][c]; });
      }
    }

    /// Adds the rows of a warp's lanes together.
    KVPOLICY_KERNEL void merge_warp(shared<B>& s, state (&states)[Group]) const {
      KVPOLICY_UNROLL
      for (int g = 0; g < Group; ++g) {
        for (std::int32_t mask = share.lanes; mask < 32; mask *= 2) states[g].merge_lane(tile, static_cast<unsigned>(mask));
        if (lane == 0) {
          s.most[tile.index() * Group + g] = states[g].most;
          s.total[tile.index() * Group + g] = states[g].total;
        }
      }
      block.sync();
    }

    /// Adds the sums of the warps, in order.
    KVPOLICY_KERNEL void merge_block(shared<B>& s, state const (&states)[Group]) const {
      for (int w = 0; w < warps; ++w) {
        if (static_cast<int>(tile.index()) == w && lane < share.lanes && reads) {
          KVPOLICY_UNROLL
          for (int g = 0; g < Group; ++g) {
            float const mine = powers_of_two::of(states[g].most - s.largest(g));
            KVPOLICY_UNROLL
            for (int c = 0; c < 8 * sets; ++c) {
              std::int32_t const at = g * 256 * sets + part * 8 + c % 8 + 256 * (c / 8);
              float before = 0;
              if (w > 0) before = s.sums[at];
              s.sums[at] = before + mine * states[g].sum[c];
            }
          }
        }
        block.sync();
      }
    }
  };
};

}  // namespace kvpolicy::gpu::detail
