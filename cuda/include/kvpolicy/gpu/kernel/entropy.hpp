// Entropy and varentropy of rows of logits, in one pass.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/rows.hpp"

namespace kvpolicy::gpu {

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
  static constexpr unsigned threads = 512;
  static constexpr char const* name = "entropy";
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
    typename B::template array<double, 16 * 3> sums;
    typename B::template array<float, 16> most;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    if (block.y() >= a.brought.of(block, block.x())) return;
    std::int64_t const from = block.x() * a.logits.sequence_stride + block.y() * a.logits.token_stride;
    // A thread's own sums are fp32: a few hundred terms; a NaN goes into all of them.
    float most = -__builtin_huge_valf();
    float total = 0;
    float first = 0;
    float second = 0;
    for (std::int64_t i = block.thread(); i < a.vocabulary; i += B::threads) {
      float const x = get(block, a.logits, from + i);
      if (x == -__builtin_huge_valf()) continue;
      if (x > most) {
        float const shift = most - x;
        float const factor = total == 0 ? 0.0f : expf(shift);
        second = total == 0 ? second : factor * (second + 2 * shift * first + shift * shift * total);
        first = total == 0 ? first : factor * (first + shift * total);
        total = total == 0 ? total : factor * total;
        most = x;
      }
      float const below = x - most;
      float const weight = expf(below);
      total += weight;
      first += weight * below;
      second += weight * below * below;
    }
    entropy_sums mine{most, total, first, second};
    auto const tile = block.tile();
    for (unsigned mask = 16; mask > 0; mask /= 2) {
      entropy_sums const other{tile.shfl_xor(mine.most, mask), tile.shfl_xor(mine.total, mask), tile.shfl_xor(mine.first, mask),
                               tile.shfl_xor(mine.second, mask)};
      mine = mine.with(other);
    }
    if (tile.lane() == 0) {
      s.most[tile.index()] = mine.most;
      s.sums[tile.index() * 3] = mine.total;
      s.sums[tile.index() * 3 + 1] = mine.first;
      s.sums[tile.index() * 3 + 2] = mine.second;
    }
    block.sync();
    if (block.thread() != 0) return;
    for (unsigned w = 1; w < B::threads / 32; ++w) {
      float const other_most = s.most[w];
      double const other_total = s.sums[w * 3];
      double const other_first = s.sums[w * 3 + 1];
      double const other_second = s.sums[w * 3 + 2];
      mine = mine.with({other_most, other_total, other_first, other_second});
    }
    // log p = x - most - log(total): its mean is -entropy, its variance the varentropy.
    double const mean = mine.first / mine.total;
    double const variance = mine.second / mine.total - mean * mean;
    std::int64_t const at = block.y() * a.sequences + block.x();
    block.global(a.entropy)[at] = static_cast<float>(log(mine.total) - mean);
    if (a.varentropy.data != nullptr) block.global(a.varentropy)[at] = static_cast<float>(variance < 0 ? 0 : variance);
  }
};

}  // namespace kvpolicy::gpu
