// Entropy and varentropy of rows of logits, in one pass.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/base/rows.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"

namespace kvpolicy::gpu::detail {

/// Sums over part of a row, relative to its maximum: of e^(x - most), and of that times (x - most) and its square.
struct entropy_sums {
  float most = -__builtin_huge_valf();
  double total = 0;
  double first = 0;
  double second = 0;

  /// As they would be relative to a maximum that is no smaller.
  KVPOLICY_KERNEL entropy_sums relative_to(float more) const {
    if (total == 0 || more == most) return {more, total, first, second};
    double const shift = static_cast<double>(most) - static_cast<double>(more);
    double const factor = exp(shift);
    return {more, factor * total, factor * (first + shift * total),
            factor * (second + 2 * shift * first + shift * shift * total)};
  }
  KVPOLICY_KERNEL entropy_sums with(entropy_sums const& other) const {
    float const more = most > other.most ? most : other.most;
    entropy_sums const a = relative_to(more);
    entropy_sums const b = other.relative_to(more);
    return {more, a.total + b.total, a.first + b.first, a.second + b.second};
  }
};

struct entropy_body {
  static constexpr unsigned threads = 1024;
  static constexpr char const* name = "entropy";
  static constexpr int warps = threads / 32;
  static constexpr int at_once = 16;  ///< logits of a thread that are on their way together
  struct arguments {
    vector_rows logits;  ///< `[sequences, tokens, vocabulary]`
    std::int64_t vocabulary = 0;
    std::int64_t sequences = 1;
    per_sequence brought{{}, 1};  ///< tokens of each; of others nothing is written
    buffer<float> entropy;        ///< `[tokens, sequences]`
    buffer<float> varentropy;     ///< the same, or none
  };
  template <class B>
  struct shared {
    typename B::template array<double, warps * 3> sums;
    typename B::template array<float, warps> most;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    if (block.y() >= a.brought.of(block, block.x())) return;
    std::int64_t const from = a.logits.begin(block, block.x()) + block.y() * a.logits.token_stride;
    // A thread's own sums are fp32: a few hundred terms; a NaN goes into all of them.
    float most = -__builtin_huge_valf();
    float total = 0;
    float first = 0;
    float second = 0;
    for (std::int64_t base = block.thread(); base < a.vocabulary; base += at_once * B::threads) {
      float logit[at_once];
      load(block, a, from, base, logit);
      float more = most;
      KVPOLICY_UNROLL
      for (float const x : logit) more = x > more ? x : more;
      if (more > most) {
        float const shift = most - more;
        float const factor = total == 0 ? 0.0f : expf(shift);
        second = total == 0 ? second : factor * (second + 2 * shift * first + shift * shift * total);
        first = total == 0 ? first : factor * (first + shift * total);
        total = total == 0 ? total : factor * total;
        most = more;
      }
      KVPOLICY_UNROLL
      for (float const x : logit) {
        if (x == -__builtin_huge_valf()) continue;
        float const below = x - most;
        float const weight = expf(below);
        total += weight;
        first += weight * below;
        second += weight * below * below;
      }
    }
    auto const tile = block.tile();
    entropy_sums mine = of_warp(tile, {most, total, first, second});
    if (tile.lane() == 0) {
      s.most[tile.index()] = mine.most;
      s.sums[tile.index() * 3] = mine.total;
      s.sums[tile.index() * 3 + 1] = mine.first;
      s.sums[tile.index() * 3 + 2] = mine.second;
    }
    block.sync();
    if (tile.index() != 0) return;
    static_assert(warps == 32);
    float const most_of = s.most[tile.lane()];
    double const total_of = s.sums[tile.lane() * 3];
    double const first_of = s.sums[tile.lane() * 3 + 1];
    double const second_of = s.sums[tile.lane() * 3 + 2];
    mine = of_warp(tile, {most_of, total_of, first_of, second_of});
    if (block.thread() != 0) return;
    // log p = x - most - log(total): its mean is -entropy, its variance the varentropy.
    double const mean = mine.first / mine.total;
    double const variance = mine.second / mine.total - mean * mean;
    std::int64_t const at = block.y() * a.sequences + block.x();
    block.global(a.entropy)[at] = static_cast<float>(log(mine.total) - mean);
    if (a.varentropy.data != nullptr) block.global(a.varentropy)[at] = static_cast<float>(variance < 0 ? 0 : variance);
  }

 private:
  /// Logits base, base + threads, ... of a row; -infinity past its end.
  template <class B>
  KVPOLICY_KERNEL static void load(B& block, arguments const& a, std::int64_t from, std::int64_t base,
                                   float (&logit)[at_once]) {
    if (a.logits.type == element_type::f32) {
      auto const floats = block.global(buffer<float const>(a.logits.as<element_type::f32>()));
      KVPOLICY_UNROLL
      for (int i = 0; i < at_once; ++i) {
        std::int64_t const at = base + i * B::threads;
        logit[i] = -__builtin_huge_valf();
        if (at < a.vocabulary) logit[i] = floats[from + at];
      }
      return;
    }
    KVPOLICY_UNROLL
    for (int i = 0; i < at_once; ++i) {
      std::int64_t const at = base + i * B::threads;
      logit[i] = at < a.vocabulary ? get(block, a.logits, from + at) : -__builtin_huge_valf();
    }
  }
  /// Of a warp's 32 parts of a row. Collective.
  template <class Tile>
  KVPOLICY_KERNEL static entropy_sums of_warp(Tile const& tile, entropy_sums mine) {
    for (unsigned mask = 16; mask > 0; mask /= 2) {
      entropy_sums const other{tile.shfl_xor(mine.most, mask), tile.shfl_xor(mine.total, mask), tile.shfl_xor(mine.first, mask),
                               tile.shfl_xor(mine.second, mask)};
      mine = mine.with(other);
    }
    return mine;
  }
};

}  // namespace kvpolicy::gpu::detail
