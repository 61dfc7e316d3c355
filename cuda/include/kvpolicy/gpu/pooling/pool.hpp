// Pooling: means, bounds and spreads of units' keys, whole or continued with what was written since. No thread waits for
// another: each has 8 channels of one unit.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/base/rows.hpp"
#include "kvpolicy/gpu/pooling/pool_items.hpp"
#include "kvpolicy/gpu/pooling/rope_reader.hpp"

namespace kvpolicy::gpu::detail {

/// Means of keys as they lie, or rotated back first: two kernels, as turning takes twice the registers.
template <element_type E, bool Turned>
struct pool_mean_of : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr unsigned least_blocks = Turned ? 1 : 8;  ///< all units of 32 of 32K tokens at once on an H100
  struct arguments {
    batch_rows keys;
    pooled_tokens what;
    buffer<float> means;  ///< (s, u, h, i) at s sequence_stride + u unit_stride + h head_stride + i
    std::int64_t sequence_stride = 0;
    std::int64_t unit_stride = 0;
    std::int64_t head_stride = 0;
    batch_rope_angles rotated;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    pool_item const mine = item_of(block, a.keys, a.what);
    if (mine.begin >= mine.end) return;
    row_reader<E, B> const keys(block, a.keys, block.z());
    auto const means = block.global(a.means);
    std::int64_t const at =
        block.z() * a.sequence_stride + mine.unit * a.unit_stride + block.y() * a.head_stride + mine.part * 8;
    // A running mean: whatever the cuts between calls, the same bits.
    float mean[8];
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) {
      mean[i] = 0;
      if (mine.already > 0 && mine.part * 8 + i < a.keys.head_dim) mean[i] = means[at + i];
    }
    auto count = static_cast<float>(mine.already);
    auto const fold = [&](float const(&x)[8]) {
      count += 1;
      float const share = 1 / count;
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) mean[i] = count == 1 ? x[i] : mean[i] + (x[i] - mean[i]) * share;
    };
    if constexpr (Turned) {
      auto const rope = a.rotated.in(block);
      KVPOLICY_UNROLL_4
      for (std::int64_t t = mine.begin; t < mine.end; ++t) {
        float x[8];
        rope.load(keys, keys.offset(block.y(), t), keys.at(block.y(), t), mine.part, x);
        fold(x);
      }
    } else {
      keys.template each_row<4>(block.y(), mine.begin, mine.end, mine.part, fold);
    }
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (mine.part * 8 + i < a.keys.head_dim) means[at + i] = mean[i];
    }
  }
};

template <element_type E>
struct pool_mean_body : pool_mean_of<E, false> {
  static constexpr char const* name = "pool_mean";
};
template <element_type E>
struct pool_pre_rope_body : pool_mean_of<E, true> {
  static constexpr char const* name = "pool_pre_rope";
};

/// Where units' vectors lie: (s, h, u), of the keys' own type. Of bounds that is head_dim maxima, then head_dim minima.
struct batch_vectors {
  void* base = nullptr;
  std::int64_t elements = 0;
  std::int64_t sequence_stride = 0;  ///< elements
  std::int64_t head_stride = 0;
  buffer<std::int64_t const> places{};  ///< `[sequences, place_stride]` where runs of units begin; none: one after the other
  std::int64_t place_stride = 0;
  std::int32_t place_shift = 0;  ///< log2 of a run's units

  template <element_type E>
  constexpr buffer<stored<E>> as() const noexcept {
    return {static_cast<stored<E>*>(base), elements};
  }
  /// The first element of a unit of so many.
  template <class B>
  KVPOLICY_KERNEL std::int64_t at(B& block, std::int64_t s, std::int64_t h, std::int64_t u, std::int64_t size) const {
    std::int64_t const in_run = s * sequence_stride + h * head_stride;
    if (places.data == nullptr) return in_run + u * size;
    std::int64_t const run = u >> place_shift;
    std::int64_t const place = block.global(places)[s * place_stride + run];
    return place + in_run + (u - (run << place_shift)) * size;
  }
};

template <element_type E>
struct pool_bounds_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "pool_bounds";
  struct arguments {
    batch_rows keys;
    pooled_tokens what;
    batch_vectors bounds;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    pooled_keys<E, B> const keys(block, a.keys, a.what);
    pool_item const mine = item_of(block, a.keys, a.what, keys.last());
    if (mine.begin >= mine.end) return;
    constexpr float most = largest(E);
    auto const bounds = block.global(a.bounds.template as<E>());
    std::int32_t const dim = a.keys.head_dim;
    std::int64_t const at = a.bounds.at(block, block.z(), block.y(), mine.unit, 2 * dim) + mine.part * 8;
    float high[8];
    float low[8];
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) {
      high[i] = -most;
      low[i] = most;
      if (mine.already > 0 && mine.part * 8 + i < dim) {
        stored<E> const old_high = bounds[at + i];
        stored<E> const old_low = bounds[at + dim + i];
        high[i] = widened<E>(old_high);
        low[i] = widened<E>(old_low);
      }
    }
    keys.each_row(block, mine, [&](float const(&x)[8]) {
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) {  // comparisons that a NaN fails
        float const value = x[i] > most ? most : x[i] < -most ? -most : x[i];
        if (value > high[i]) high[i] = value;
        if (value < low[i]) low[i] = value;
      }
    });
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (mine.part * 8 + i >= dim) continue;
      bounds[at + i] = narrowed<E>(high[i]);
      bounds[at + dim + i] = narrowed<E>(low[i]);
    }
  }
};

template <element_type E>
struct pool_mean_deviation_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "pool_mean_deviation";
  struct arguments {
    batch_rows keys;
    pooled_tokens what;
    /// Means, then sums of squared differences: of every unit, with the bounds' strides; or, `open_alone`, of each sequence's
    /// and head's open unit, `[sequences, heads, 2, head_dim]`: what is complete is not continued.
    buffer<float> moments;
    bool open_alone = false;
    batch_vectors bounds;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    pooled_keys<E, B> const keys(block, a.keys, a.what);
    pool_item const mine = item_of(block, a.keys, a.what, keys.last());
    if (mine.begin >= mine.end) return;
    auto const moments = block.global(a.moments);
    auto const bounds = block.global(a.bounds.template as<E>());
    std::int32_t const dim = a.keys.head_dim;
    std::int64_t const at = a.bounds.at(block, block.z(), block.y(), mine.unit, 2 * dim) + mine.part * 8;
    std::int64_t const kept =
        a.open_alone ? (static_cast<std::int64_t>(block.z()) * a.keys.heads + block.y()) * 2 * dim + mine.part * 8 : at;
    float mean[8];
    float squares[8];
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) {
      mean[i] = 0;
      squares[i] = 0;
      if (mine.already > 0 && mine.part * 8 + i < dim) {
        mean[i] = moments[kept + i];
        squares[i] = moments[kept + dim + i];
      }
    }
    auto count = static_cast<float>(mine.already);
    keys.each_row(block, mine, [&](float const(&x)[8]) {
      bool const fresh = count == 0;
      count += 1;
      KVPOLICY_UNROLL
      for (int i = 0; i < 8; ++i) {
        float const before = fresh ? x[i] : mean[i];
        mean[i] = before + (x[i] - before) / count;
        squares[i] += (x[i] - before) * (x[i] - mean[i]);
      }
    });
    constexpr float most = largest(E);
    KVPOLICY_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (mine.part * 8 + i >= dim) continue;
      float const deviation = sqrtf(squares[i] / count);
      float const high = mean[i] + deviation;
      float const low = mean[i] - deviation;
      if (!a.open_alone || mine.already + mine.end - mine.begin < a.what.unit_size) {
        moments[kept + i] = mean[i];
        moments[kept + dim + i] = squares[i];
      }
      bounds[at + i] = narrowed<E>(high > most ? most : high < -most ? -most : high);
      bounds[at + dim + i] = narrowed<E>(low > most ? most : low < -most ? -most : low);
    }
  }
};

}  // namespace kvpolicy::gpu::detail
