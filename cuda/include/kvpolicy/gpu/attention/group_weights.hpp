// The weights that logits and their statistics stand for, merged over query groups and smoothed.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/attention/lists.hpp"

namespace kvpolicy::gpu::detail {

/// out(s, h, i) = mean over KV head h's query heads of e^(logit - maximum) / sum, smoothed over its neighbours
/// (primitive/window_attention.hpp: smooth_row).
struct group_weights_body {
  static constexpr unsigned threads = 256;
  static constexpr char const* name = "group_weights";
  static constexpr std::int32_t reach = 16;  ///< neighbours on each side that a block shares; farther ones it works out anew
  struct arguments {
    buffer<float const> logits;
    std::int64_t stride = 0;
    buffer<float const> statistics;
    token_lists lists;
    std::int64_t first = 0;
    std::int32_t group = 1;
    std::int32_t heads = 1;     ///< of the output
    std::int32_t per_list = 1;  ///< of them share a list
    buffer<float> out;          ///< (s, h, i)
    std::int64_t sequence_stride = 0;
    std::int64_t head_stride = 0;
    bool maximum = false;  ///< of the group, not its mean
    std::int32_t how = 0;  ///< smoothing::kind
    std::int32_t width = 1;
    buffer<std::int32_t const> source{};  ///< `[sequences, heads]` which head's logits an output has; none: its own
    std::int32_t rows_of_head = 1;        ///< of these; the group begins at first_row
    std::int32_t first_row = 0;
    std::int32_t blocks = 1;  ///< that share a row
  };
  template <class B>
  struct shared {
    typename B::template array<float, threads + 2 * reach> weights;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    list_reader<B> const list(block, a.lists, block.z(), block.y() / static_cast<unsigned>(a.per_list));
    std::int64_t const count = list.count() - a.first;
    std::int64_t const turn = static_cast<std::int64_t>(a.blocks) * B::threads;
    std::int64_t base = static_cast<std::int64_t>(block.x()) * B::threads;
    if (base >= count) return;
    std::int64_t const mine = static_cast<std::int64_t>(block.z()) * a.heads + block.y();
    std::int64_t q = mine * a.group;
    if (a.source.data != nullptr) {
      std::int32_t const source = block.global(a.source)[mine];
      q = (static_cast<std::int64_t>(block.z()) * a.heads + source) * a.rows_of_head + a.first_row;
    }
    auto const weight = [&](std::int64_t i) { return merged(block, a, q, i); };
    auto const thread = static_cast<std::int32_t>(block.thread());
    auto const out = block.global(a.out);
    std::int64_t const to = block.z() * a.sequence_stride + block.y() * a.head_stride;
    if (a.how == 0) {
      for (std::int64_t i = base + thread; i < count; i += turn) out[to + i] = weight(i);
      return;
    }
    std::int32_t const side = a.width / 2;
    for (; base < count; base += turn) {
      std::int64_t const begin = base - reach;  // what is shared
      for (std::int32_t i = thread; i < static_cast<std::int32_t>(B::threads) + 2 * reach; i += B::threads) {
        std::int32_t const within = side < reach ? side : reach;
        bool const wanted = i >= reach - within && i < static_cast<std::int32_t>(B::threads) + reach + within;
        if (wanted && begin + i >= 0 && begin + i < count) s.weights[i] = weight(begin + i);
      }
      block.sync();
      std::int64_t const t = base + thread;
      std::int64_t const first = t > side ? t - side : 0;
      std::int64_t const last = t + side + 1 < count ? t + side + 1 : count;
      float result = a.how == 2 ? -__builtin_huge_valf() : 0;
      for (std::int64_t i = first; t < count && i < last; ++i) {
        bool const near = i >= t - reach && i <= t + reach;
        float value = 0;
        if (near) value = s.weights[i - begin];
        else value = weight(i);
        if (a.how != 2) result += value;
        else if (!(value <= result)) result = value;
      }
      if (t < count) out[to + t] = a.how == 1 ? result / static_cast<float>(a.width) : result;
      block.sync();
    }
  }

 private:
  template <class B>
  KVPOLICY_KERNEL static float merged(B& block, arguments const& a, std::int64_t first_q, std::int64_t i) {
    auto const logits = block.global(a.logits);
    auto const statistics = block.global(a.statistics);
    float merged = 0;
    for (std::int32_t g = 0; g < a.group; ++g) {
      std::int64_t const q = first_q + g;
      float const x = logits[q * a.stride + i];
      float const most = statistics[q * 2];
      float const share = statistics[q * 2 + 1];
      float const weight = expf(x - most) * share;
      if (!a.maximum) merged += weight;
      else if (!(weight <= merged)) merged = weight;
    }
    return a.maximum ? merged : merged / static_cast<float>(a.group);
  }
};

}  // namespace kvpolicy::gpu::detail
