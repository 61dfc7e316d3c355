// Of the tokens of chosen units, the fewest that hold a share of the attention (Twilight).
#pragma once

#include <cmath>

#include "kvpolicy/gpu/attention/lists.hpp"
#include "kvpolicy/gpu/base/radix.hpp"

namespace kvpolicy::gpu::detail {

/// A list of tokens: the first units of another, and of its other units' tokens those that a query head's share takes, the
/// heaviest first. The tail is read in any case. One block a KV head and sequence.
struct prune_body {
  static constexpr unsigned threads = 512;
  static constexpr char const* name = "prune";
  struct arguments {
    buffer<float const> logits;  ///< `[sequences, q_heads, stride]` of the listed tokens
    std::int64_t stride = 0;
    buffer<float const> statistics;  ///< `[sequences, q_heads, 2]`
    token_lists among;               ///< a sequence that is not there, or weighs nothing, has no tokens in these
    per_sequence first;              ///< units that are read in any case
    std::int32_t group = 1;
    std::int32_t heads = 1;
    double mass = 1;              ///< of each query head's attention that is read at least
    buffer<std::uint8_t> read;    ///< `[sequences, heads, stride]` scratch
    buffer<std::int32_t> tokens;  ///< `[sequences, heads, token_stride]`
    std::int64_t token_stride = 0;
    buffer<std::int32_t> named;  ///< `[sequences, heads]`
  };
  template <class B>
  struct shared {
    radix_shared<B> radix;
    typename B::template reduce_storage<std::int32_t> reduce;
    typename B::template array<std::int32_t, 2> sums;  ///< of all weights, and of those that are read in any case
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    std::int64_t const row = static_cast<std::int64_t>(block.y()) * a.heads + block.x();
    list_reader<B> const list(block, a.among, block.y(), block.x());
    auto const thread = static_cast<std::int32_t>(block.thread());
    auto const count = static_cast<std::int32_t>(list.count());
    auto const begin = static_cast<std::int32_t>(a.first.of(block, block.y())) * a.among.unit_size;
    std::int32_t listed = 0;
    if (count > 0) listed = block.global(a.among.named)[row];
    auto const read = block.global(a.read);
    for (std::int32_t i = begin + thread; i < listed; i += B::threads) read[row * a.stride + i] = 0;
    for (std::int32_t g = 0; g < a.group && begin < listed; ++g) {
      std::int64_t const q = row * a.group + g;
      auto const logits = block.global(a.logits);
      float const most = block.global(a.statistics)[q * 2];
      float const share = block.global(a.statistics)[q * 2 + 1];
      auto const weight = [&](std::int32_t i) {
        float const logit = logits[q * a.stride + i];
        return expf(logit - most) * share;
      };
      std::int32_t all = 0;
      std::int32_t held = 0;
      for (std::int32_t i = thread; i < count; i += B::threads) {
        std::int32_t const mine = parts(weight(i));
        all += mine;
        if (i < begin || i >= listed) held += mine;
      }
      auto const add = [](std::int32_t x, std::int32_t y) { return x + y; };
      all = block.reduce(s.reduce, all, add);
      if (thread == 0) s.sums[0] = all;
      block.sync();
      held = block.reduce(s.reduce, held, add);
      if (thread == 0) s.sums[1] = held;
      block.sync();
      all = s.sums[0];
      held = s.sums[1];
      auto const wanted = static_cast<std::int32_t>(ceil(a.mass * static_cast<double>(all))) - held;
      block.sync();
      if (wanted > 0) mark(block, s, a, row, begin, listed, wanted < all - held ? wanted : all - held, weight);
    }
    auto const tokens = block.global(a.tokens);
    std::int32_t written = begin < listed ? begin : listed;
    for (std::int32_t i = thread; i < written; i += B::threads) {
      tokens[row * a.token_stride + i] = static_cast<std::int32_t>(list.token(i));
    }
    for (std::int32_t base = begin; base < listed; base += B::threads) {
      std::int32_t const i = base + thread;
      std::uint8_t wanted = 0;
      if (i < listed) wanted = read[row * a.stride + i];
      std::int32_t total = 0;
      std::int32_t const before = block.exclusive_sum(s.radix.scan, wanted != 0 ? 1 : 0, total);
      if (wanted != 0) tokens[row * a.token_stride + written + before] = static_cast<std::int32_t>(list.token(i));
      written += total;
      block.sync();
    }
    if (thread == 0) block.global(a.named)[row] = written;
  }

 private:
  /// A weight in parts of 2^-30: sums don't depend on their order.
  static KVPOLICY_KERNEL std::int32_t parts(float weight) {
    return weight > 0 ? static_cast<std::int32_t>(weight * 1073741824.0f + .5f) : 0;
  }

  /// Marks the heaviest of [begin, end) that weigh `wanted` together; of equal ones the first.
  template <class B, class Weight>
  KVPOLICY_KERNEL static void mark(B& block, shared<B>& s, arguments const& a, std::int64_t row, std::int32_t begin,
                                   std::int32_t end, std::int32_t wanted, Weight weight) {
    auto const thread = static_cast<std::int32_t>(block.thread());
    if (wanted <= 0) return;
    radix_threshold const threshold = select_threshold(block, s.radix, wanted, [&](auto visit) {
      for (std::int32_t i = begin + thread; i < end; i += B::threads) {
        float const mine = weight(i);
        visit(sortable_key(mine), parts(mine));
      }
    });
    auto const read = block.global(a.read);
    std::int32_t ties_before = 0;
    for (std::int32_t base = begin; base < end; base += B::threads) {
      std::int32_t const i = base + thread;
      float mine = 0;
      if (i < end) mine = weight(i);
      std::uint32_t const key = i < end ? sortable_key(mine) : 0;
      bool const tie = i < end && key == threshold.key;
      std::int32_t total = 0;
      std::int32_t const ties = ties_before + block.exclusive_sum(s.radix.ties, tie ? parts(mine) : 0, total);
      if (i < end && (key > threshold.key || (tie && ties < threshold.ties))) read[row * a.stride + i] = 1;
      ties_before += total;
      block.sync();
    }
  }
};

}  // namespace kvpolicy::gpu::detail
