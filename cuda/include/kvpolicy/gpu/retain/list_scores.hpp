// Scores of a list's tokens by their keys alone: how much each repeats others, and what queries to come want.
#pragma once

#include <cmath>

#include "kvpolicy/gpu/attention/lists.hpp"

namespace kvpolicy::gpu::detail {

/// Of each token of a list, one block each: the sum of its cosines with the list's others, which of them is the last that is
/// like it, and the cosine with that one.
template <element_type E>
struct key_cosines_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "key_cosines";
  struct arguments {
    batch_rows keys;
    token_lists lists;
    float alike = 1;
    buffer<float> sums;            ///< `[heads, stride]`
    buffer<std::int32_t> last;     ///< `[heads, stride]`, or -1
    buffer<float> cosine_of_last;  ///< `[heads, stride]`
    std::int64_t stride = 0;
  };
  template <class B>
  struct shared {
    typename B::template reduce_storage<float> sum;
    typename B::template array<std::int32_t, 1> found;
    typename B::template reduce_storage<std::int32_t> last;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>& s, arguments const& a) {
    list_reader<B> const list(block, a.lists, 0, block.y());
    std::int64_t const mine = block.x();
    if (mine >= list.count()) return;
    row_reader<E, B> const keys(block, a.keys, 0);
    std::int64_t const own = keys.offset(block.y(), list.token(mine));
    float sum = 0;
    float cosine = 0;
    std::int32_t last = -1;
    for (std::int64_t i = block.thread(); i < list.count(); i += B::threads) {
      if (i == mine) continue;
      std::int64_t const other = keys.offset(block.y(), list.token(i));
      float product = 0;
      float of_own = 0;
      float of_other = 0;
      for (std::int32_t d = 0; d < a.keys.head_dim; ++d) {
        float const x = keys.one(own, d);
        float const y = keys.one(other, d);
        product += x * y;
        of_own += x * x;
        of_other += y * y;
      }
      float const norms = sqrtf(of_own) * sqrtf(of_other);
      float const one = norms == 0 ? 0.0f : product / norms;
      sum += one;
      if (one > a.alike) {
        last = static_cast<std::int32_t>(i);
        cosine = one;
      }
    }
    sum = block.reduce(s.sum, sum, [](float x, float y) { return x + y; });
    std::int32_t const found = block.reduce(s.last, last, [](std::int32_t x, std::int32_t y) { return x > y ? x : y; });
    std::int64_t const at = block.y() * a.stride + mine;
    if (block.thread() == 0) {
      block.global(a.sums)[at] = sum;
      block.global(a.last)[at] = found;
      s.found[0] = found;
    }
    block.sync();
    std::int32_t const latest = s.found[0];
    if (last >= 0 && last == latest) block.global(a.cosine_of_last)[at] = cosine;
  }
};

/// redundancy(h, i): the mean of what the list's tokens have in common with token i, but for those whose last one it is.
struct redundancy_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "redundancy";
  struct arguments {
    buffer<float const> sums;
    buffer<std::int32_t const> last;
    buffer<float const> cosine_of_last;
    std::int64_t stride = 0;
    token_lists lists;
    buffer<float> out;  ///< `[heads, out_stride]`
    std::int64_t out_stride = 0;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    list_reader<B> const list(block, a.lists, 0, block.y());
    std::int64_t const mine = index_in_grid(block);
    if (mine >= list.count()) return;
    auto const last = block.global(a.last);
    auto const cosines = block.global(a.cosine_of_last);
    float sum = block.global(a.sums)[block.y() * a.stride + mine];
    for (std::int64_t j = 0; j < list.count(); ++j) {
      std::int32_t const of_j = last[block.y() * a.stride + j];
      if (of_j != mine) continue;
      float const one = cosines[block.y() * a.stride + j];
      sum -= one;
    }
    block.global(a.out)[block.y() * a.out_stride + mine] = sum / static_cast<float>(list.count());
  }
};

/// wanted(q, i): mean_q.k_i, and the lengths of the key's pairs, each as often as the spread says. One thread a token and query
/// head.
template <element_type E>
struct rotated_scores_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "rotated_scores";
  struct arguments {
    batch_rows keys;
    token_lists lists;
    buffer<float const> mean;  ///< `[q_heads, mean_stride]`
    std::int64_t mean_stride = 0;
    buffer<float const> spread;  ///< `[q_heads, spread_stride]`
    std::int64_t spread_stride = 0;
    std::int32_t pairs = 0;
    bool halves = true;
    std::int32_t group = 1;
    buffer<float> out;  ///< `[q_heads, stride]`
    std::int64_t stride = 0;
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto const head = static_cast<unsigned>(block.y() / static_cast<unsigned>(a.group));
    list_reader<B> const list(block, a.lists, 0, head);
    std::int64_t const mine = index_in_grid(block);
    if (mine >= list.count()) return;
    row_reader<E, B> const keys(block, a.keys, 0);
    std::int64_t const row = keys.offset(head, list.token(mine));
    auto const mean = block.global(a.mean);
    auto const spread = block.global(a.spread);
    float sum = 0;
    for (std::int32_t d = 0; d < a.keys.head_dim; ++d) {
      float const of_query = mean[block.y() * a.mean_stride + d];
      sum += of_query * keys.one(row, d);
    }
    for (std::int32_t f = 0; f < a.pairs; ++f) {
      float const x = keys.one(row, a.halves ? f : 2 * f);
      float const y = keys.one(row, a.halves ? f + a.pairs : 2 * f + 1);
      float const weight = spread[block.y() * a.spread_stride + f];
      sum += weight * sqrtf(x * x + y * y);
    }
    block.global(a.out)[block.y() * a.stride + mine] = sum;
  }
};

}  // namespace kvpolicy::gpu::detail
