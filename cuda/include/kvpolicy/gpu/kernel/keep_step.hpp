// What a step's tokens may be needed for later: their queries and their ids.
#pragma once

#include "kvpolicy/gpu/rows.hpp"

namespace kvpolicy::gpu {

/// Copies the queries and ids of the tokens that sequences bring. One block a token and sequence.
struct keep_step_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "keep_step";
  struct arguments {
    vector_rows queries;  ///< `[sequences, step, q_heads, head_dim]`, or none
    std::int32_t q_heads = 1;
    std::int32_t head_dim = 0;
    buffer<std::int32_t const> ids;  ///< `[sequences, step]`, or none
    std::int32_t step = 1;
    std::int64_t sequences = 1;
    per_sequence brought;           ///< tokens of each; of others nothing is written
    buffer<float> kept_queries;     ///< `[step, sequences, q_heads, head_dim]`
    buffer<std::int32_t> kept_ids;  ///< `[step, sequences]`
  };

  template <class B>
  KVPOLICY_KERNEL static void run(B& block, shared<B>&, arguments const& a) {
    if (block.x() >= a.brought.of(block, block.y())) return;
    std::int64_t const row = block.x() * a.sequences + block.y();
    if (a.ids.data != nullptr && block.thread() == 0) {
      std::int32_t const id = block.global(a.ids)[block.y() * static_cast<std::int64_t>(a.step) + block.x()];
      block.global(a.kept_ids)[row] = id;
    }
    if (a.queries.base == nullptr) return;
    std::int32_t const size = a.q_heads * a.head_dim;
    std::int64_t const from = block.y() * a.queries.sequence_stride + block.x() * a.queries.token_stride;
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < size; i += B::threads) {
      std::int32_t const head = i / a.head_dim;
      block.global(a.kept_queries)[row * size + i] =
          get(block, a.queries, from + head * a.queries.head_stride + (i - head * a.head_dim));
    }
  }
};

}  // namespace kvpolicy::gpu
