// The splits of a decode attention, put together.
#pragma once

#include "kvpolicy/cuda/kernel/attend_split.hpp"

namespace kvpolicy::cuda {

/// Puts an attention's splits together.
struct attend_merge_body {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "attend_merge";
  struct arguments {
    buffer<float const> partial;  ///< `[sequences, q_heads, splits, head_dim + 2]`
    std::int32_t splits = 1;
    std::int32_t head_dim = 0;
    std::int32_t q_heads = 0;
    vector_rows out;
    buffer<float> log_sum_exp;  ///< `[sequences, q_heads]`, or none
  };
  template <class B>
  struct shared {};

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    auto const partial = block.global(a.partial);
    std::int64_t const q = static_cast<std::int64_t>(block.y()) * a.q_heads + block.x();
    std::int64_t const at = q * a.splits * (a.head_dim + 2);
    float more = no_logit;
    for (std::int32_t i = 0; i < a.splits; ++i) {
      float const m = partial[at + i * (a.head_dim + 2)];
      more = m > more ? m : more;
    }
    float all = 0;
    for (std::int32_t i = 0; i < a.splits; ++i) {
      float const m = partial[at + i * (a.head_dim + 2)];
      float const t = partial[at + i * (a.head_dim + 2) + 1];
      all += t * exp2f(m - more);
    }
    for (std::int32_t d = static_cast<std::int32_t>(block.thread()); d < a.head_dim; d += B::threads) {
      float sum = 0;
      for (std::int32_t i = 0; i < a.splits; ++i) {
        float const m = partial[at + i * (a.head_dim + 2)];
        float const weighted = partial[at + i * (a.head_dim + 2) + 2 + d];
        sum += weighted * exp2f(m - more);
      }
      put(block, a.out, block.y() * a.out.sequence_stride + block.x() * a.out.head_stride + d, all == 0 ? 0.0f : sum / all);
    }
    if (block.thread() == 0 && a.log_sum_exp.data != nullptr) {
      block.global(a.log_sum_exp)[q] = all == 0 ? -__builtin_huge_valf() : (more + log2f(all)) * 0.693147181f;
    }
  }
};

}  // namespace kvpolicy::cuda
