// What the bodies of decode attention share: their arguments, a block's query heads, and what a split of a list comes to.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/attention/lists.hpp"
#include "kvpolicy/gpu/attention/softmax_state.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// What a model adds, as attention_terms; arrays on the device.
struct attend_terms {
  float soft_cap = 0;
  buffer<float const> slopes{};  ///< `[q_heads]`, or none
  buffer<float const> sinks{};   ///< `[q_heads]`, or none

  constexpr bool change_logits() const noexcept { return soft_cap != 0 || slopes.data != nullptr; }
};

/// What an attention over splits of lists is given.
struct attend_arguments {
  vector_rows queries;  ///< `[sequences, step, q_heads, head_dim]`
  float scale = 1;
  std::int32_t group = 1;  ///< query heads of a KV head
  std::int32_t step = 1;   ///< tokens that a sequence brings at most
  per_sequence brought;    ///< tokens that it brings: its last ones
  std::int32_t tiles = 1;  ///< that a KV head's queries are worked on in
  batch_rows keys;
  batch_rows values;
  token_lists lists;
  std::int32_t splits = 1;
  vector_rows out;                ///< as queries, of value_dim channels; 0 of tokens that are not brought
  buffer<float> log_sum_exp;      ///< `[sequences, step, q_heads]`, or none
  buffer<float> partial;          ///< `[sequences, step, q_heads, splits, value_dim + 2]`, where there are several splits
  buffer<std::int32_t> counters;  ///< `[sequences, kv_heads tiles]` zeros, where there are more
  attend_terms terms{};
};

/// Logits in base 2, which powers_of_two takes, and back.
inline constexpr float log2_of_e = 1.44269504f;
inline constexpr float log_of_2 = 0.693147181f;

/// The queries of a block's tile, `most` to each tile but the last: of a KV head's, the first token's heads, the second's and
/// so on.
struct attend_tile {
  unsigned kv_head;
  std::int32_t first;
  std::int32_t real;  ///< queries

  template <class B>
  KVPOLICY_KERNEL attend_tile(B& block, attend_arguments const& a, std::int32_t most)
      : kv_head(block.y() / static_cast<unsigned>(a.tiles)) {
    std::int32_t const nth = static_cast<std::int32_t>(block.y()) - static_cast<std::int32_t>(kv_head) * a.tiles;
    first = nth * most;
    real = a.step * a.group - first < most ? a.step * a.group - first : most;
  }

  /// A query's token among those of the step.
  KVPOLICY_KERNEL std::int32_t token(attend_arguments const& a, std::int32_t g) const {
    return a.step == 1 ? 0 : (first + g) / a.group;
  }
  KVPOLICY_KERNEL std::int32_t q_head(attend_arguments const& a, std::int32_t g) const {
    return static_cast<std::int32_t>(kv_head) * a.group + first + g - token(a, g) * a.group;
  }
  /// Its first element among vectors.
  template <class B>
  KVPOLICY_KERNEL std::int64_t element(B& block, attend_arguments const& a, vector_rows const& of, std::int32_t g) const {
    return of.begin(block, block.z()) + token(a, g) * of.token_stride + q_head(a, g) * of.head_stride;
  }
  /// Its row among those of a batch.
  KVPOLICY_KERNEL std::int64_t row(attend_arguments const& a, unsigned sequence, std::int32_t g) const {
    std::int64_t const q_heads = static_cast<std::int64_t>(a.keys.heads) * a.group;
    return (static_cast<std::int64_t>(sequence) * a.step + token(a, g)) * q_heads + q_head(a, g);
  }
  /// A query's logit in base 2 with what the model adds: of a key of `token`, where the query's own is `own`.
  template <class B>
  KVPOLICY_KERNEL float changed(B& block, attend_arguments const& a, std::int32_t g, float logit, std::int64_t token,
                                std::int64_t own) const {
    logit *= log_of_2;
    if (a.terms.soft_cap != 0) logit = a.terms.soft_cap * tanhf(logit / a.terms.soft_cap);
    if (a.terms.slopes.data != nullptr) {
      float const slope = block.global(a.terms.slopes)[q_head(a, g)];
      logit += slope * static_cast<float>(token - own);
    }
    return logit * log2_of_e;
  }
  /// The token of a query itself.
  template <class B>
  KVPOLICY_KERNEL std::int64_t own(B& block, attend_arguments const& a, std::int32_t g) const {
    std::int64_t const tokens = a.lists.tokens.of(block, block.z());
    return a.step == 1 ? tokens - 1 : tokens - a.brought.of(block, block.z()) + token(a, g);
  }

  /// How many of its list's tokens a query sees: those up to its own. The tokens behind it are at the list's end.
  template <class B>
  KVPOLICY_KERNEL std::int64_t seen(B& block, attend_arguments const& a, list_reader<B> const& list, std::int32_t g) const {
    std::int64_t count = list.count();
    if (a.step == 1) return count;
    std::int64_t const brought = a.brought.of(block, block.z());
    if (token(a, g) >= brought) return 0;
    std::int64_t const mine = own(block, a, g);
    while (count > 0 && list.token(count - 1) > mine) --count;
    return count;
  }
};

KVPOLICY_KERNEL float log_sum_exp(float most, float total) {
  return total == 0 ? -__builtin_huge_valf() : (most + log2f(total)) * log_of_2;
}

/// A sink's logit in base 2.
template <class B>
KVPOLICY_KERNEL float sink_of(B& block, attend_arguments const& a, attend_tile const& heads, std::int32_t g) {
  float const sink = block.global(a.terms.sinks)[heads.q_head(a, g)];
  return sink * log2_of_e;
}

/// A warp a query, so that what all splits found is on its way at once; the splits in order.
template <int Channels, class B>
KVPOLICY_KERNEL void merge_splits(B& block, attend_arguments const& a, attend_tile const& heads, std::int32_t splits) {
  auto const partial = block.global(a.partial);
  auto const tile = block.tile();
  auto const lane = static_cast<std::int32_t>(tile.lane());
  std::int64_t const size = a.values.head_dim + 2;
  for (auto g = static_cast<std::int32_t>(tile.index()); g < heads.real; g += static_cast<std::int32_t>(B::threads / 32)) {
    std::int64_t const q = heads.row(a, block.z(), g);
    std::int64_t const at = q * a.splits * size;
    softmax_state<powers_of_two, Channels / 32> state;
    for (std::int32_t split = lane; split < splits; split += 32) {
      float const m = partial[at + split * size];
      state.most = fmaxf(state.most, m);
    }
    KVPOLICY_UNROLL
    for (unsigned mask = 1; mask < 32; mask *= 2) {
      float const other = tile.shfl_xor(state.most, mask);
      state.most = fmaxf(state.most, other);
    }
    for (std::int32_t base = 0; base < splits; base += 32) {
      float kept = 0;
      float of_split = 0;
      if (base + lane < splits) {
        float const m = partial[at + (base + lane) * size];
        float const t = partial[at + (base + lane) * size + 1];
        kept = state.weight(m);
        of_split = t;
      }
      std::int32_t const here = splits - base < 32 ? splits - base : 32;
      KVPOLICY_UNROLL_4
      for (std::int32_t i = 0; i < here; ++i) {
        float const share = tile.shfl(kept, static_cast<unsigned>(i));
        state.total += tile.shfl(of_split, static_cast<unsigned>(i)) * share;
        KVPOLICY_UNROLL
        for (int c = 0; c < Channels / 32; ++c) {
          if (32 * c + lane >= a.values.head_dim) continue;
          float const weighted = partial[at + (base + i) * size + 2 + 32 * c + lane];
          state.sum[c] += weighted * share;
        }
      }
    }
    if (a.terms.sinks.data != nullptr) state.merge(sink_of(block, a, heads, g), 1);
    KVPOLICY_UNROLL
    for (int c = 0; c < Channels / 32; ++c) {
      if (32 * c + lane >= a.values.head_dim) continue;
      put(block, a.out, heads.element(block, a, a.out, g) + 32 * c + lane,
          state.total == 0 ? 0.0f : state.sum[c] / state.total);
    }
    if (lane == 0 && a.log_sum_exp.data != nullptr) {
      block.global(a.log_sum_exp)[q] = log_sum_exp(state.most, state.total);
    }
  }
}

/// What the warps of a block come to, each by itself; or groups of them that share rows.
template <class B, int Heads, int Warps, int Channels>
class attend_shared {
 public:
  typename B::template array<float, Heads * Channels> sums;  ///< of the warps' values
  typename B::template array<float, Warps * Heads> most;
  typename B::template array<float, Warps * Heads> total;
  typename B::last_storage last;

  /// The largest logit that any warp saw of a head.
  KVPOLICY_KERNEL float largest(int head) {
    float more = no_logit;
    for (int v = 0; v < Warps; ++v) {
      float const m = most[v * Heads + head];
      more = m > more ? m : more;
    }
    return more;
  }

  /// How many splits of a list of so many turns have one: the others end at once. One at least.
  KVPOLICY_KERNEL static std::int32_t working(attend_arguments const& a, std::int64_t turns) {
    std::int64_t const wanted = (turns + Warps - 1) / Warps;
    return wanted < 1 ? 1 : wanted < a.splits ? static_cast<std::int32_t>(wanted) : a.splits;
  }

  /// A list's result from all warps' sums; of a split its part, which the last of `splits` to come puts together.
  KVPOLICY_KERNEL void finish(B& block, attend_arguments const& a, attend_tile const& heads, std::int32_t splits) {
    write(block, a, heads, splits);
    std::int64_t const list = static_cast<std::int64_t>(block.z()) * a.keys.heads * a.tiles + block.y();
    if (splits > 1 && block.last_of(last, a.counters, list, splits) && a.out.rows.has(block, block.z()))
      merge_splits<Channels>(block, a, heads, splits);
  }

 private:
  KVPOLICY_KERNEL void write(B& block, attend_arguments const& a, attend_tile const& heads, std::int32_t splits) {
    if (!a.out.rows.has(block, block.z())) return;
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < heads.real * a.values.head_dim; i += B::threads) {
      std::int32_t const g = i / a.values.head_dim;
      std::int32_t const d = i - g * a.values.head_dim;
      float more = largest(g);
      float all = 0;
      for (int v = 0; v < Warps; ++v) {
        float const m = most[v * Heads + g];
        float const t = total[v * Heads + g];
        all += t * powers_of_two::of(m - more);
      }
      float weighted = sums[g * Channels + d];
      std::int64_t const q = heads.row(a, block.z(), g);
      if (splits == 1) {
        if (a.terms.sinks.data != nullptr) {
          softmax_state<powers_of_two, 1> with{more, all, {weighted}};
          with.merge(sink_of(block, a, heads, g), 1);
          more = with.most;
          all = with.total;
          weighted = with.sum[0];
        }
        put(block, a.out, heads.element(block, a, a.out, g) + d, all == 0 ? 0.0f : weighted / all);
        if (d == 0 && a.log_sum_exp.data != nullptr) {
          block.global(a.log_sum_exp)[q] = log_sum_exp(more, all);
        }
      } else {
        auto const partial = block.global(a.partial);
        std::int64_t const at = (q * a.splits + block.x()) * (a.values.head_dim + 2);
        partial[at + 2 + d] = weighted;
        if (d == 0) {
          partial[at] = more;
          partial[at + 1] = all;
        }
      }
    }
  }
};

}  // namespace kvpolicy::gpu::detail
