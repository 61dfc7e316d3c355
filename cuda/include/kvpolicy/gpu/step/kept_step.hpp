// What a decoder keeps of a step's tokens until it is known which of them stay.
#pragma once

#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/step/context.hpp"

namespace kvpolicy::gpu::detail {

/// Copies the queries and ids of the tokens that sequences bring. One block a token and sequence.
struct keep_step_body : no_shared {
  static constexpr unsigned threads = 128;
  static constexpr char const* name = "keep_step";
  struct arguments {
    vector_rows queries;  ///< `[sequences, step, q_heads, head_dim]`, or none
    std::int32_t q_heads = 1;
    std::int32_t head_dim = 0;
    buffer<std::int32_t const> ids;  ///< `[rows, step]`, or none
    row_map rows;
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
      std::int32_t const id = block.global(a.ids)[static_cast<std::int64_t>(a.rows.of(block, block.y())) * a.step + block.x()];
      block.global(a.kept_ids)[row] = id;
    }
    if (a.queries.base == nullptr) return;
    std::int32_t const size = a.q_heads * a.head_dim;
    std::int64_t const from = a.queries.begin(block, block.y()) + block.x() * a.queries.token_stride;
    for (std::int32_t i = static_cast<std::int32_t>(block.thread()); i < size; i += B::threads) {
      std::int32_t const head = i / a.head_dim;
      block.global(a.kept_queries)[row * size + i] =
          get(block, a.queries, from + head * a.queries.head_stride + (i - head * a.head_dim));
    }
  }
};

/// Queries and ids of the tokens that each sequence brought to its last step.
template <owning_device D>
class kept_step {
 public:
  /// @param device  the device; must outlive this
  /// @param shape  of each sequence's cache
  /// @param sequences  of the batch
  /// @param tokens  of a step at most
  /// @param needed  what a policy needs of them: nothing is kept but that, and only of steps of several tokens
  kept_step(D& device, cache_shape const& shape, std::int64_t sequences, std::int64_t tokens, signals needed)
      : device_(&device),
        shape_(shape),
        sequences_(sequences),
        tokens_(tokens),
        with_queries_(tokens > 1 && contains(needed, signals::queries)),
        with_ids_(tokens > 1 && contains(needed, signals::token_ids)),
        queries_(device, shape.layers, with_queries_ ? tokens * sequences * shape.q_heads * shape.head_dim : 0),
        ids_(device.template allocate<std::int32_t>(with_ids_ ? tokens * sequences : 0)) {}

  /// Enqueues the copies of a layer of a step. Sequences that bring nothing keep what they have.
  void keep(decode_step const& step, per_sequence const& brought) {
    if (!with_queries_ && !(with_ids_ && step.layer.value == 0)) return;
    keep_step_body::arguments a{};
    if (with_queries_) a.queries = step.queries;
    a.q_heads = static_cast<std::int32_t>(shape_.q_heads);
    a.head_dim = static_cast<std::int32_t>(shape_.head_dim);
    if (with_ids_ && step.layer.value == 0) a.ids = step.ids;
    a.rows = step.id_rows;
    a.step = static_cast<std::int32_t>(tokens_);
    a.sequences = sequences_;
    a.brought = brought;
    a.kept_queries = queries_.of(step.layer);
    a.kept_ids = ids_.get();
    device_->template launch<keep_step_body>({tokens_, sequences_, 1}, a);
  }

  /// What a token of the last step needs of its own.
  void show(std::int64_t nth, decode_step& step) const noexcept {
    std::int64_t const size = sequences_ * shape_.q_heads * shape_.head_dim;
    if (with_queries_)
      step.queries = vectors_of_floats(part_of(queries_.of(step.layer), nth * size, size), shape_.q_heads, shape_.head_dim);
    if (!with_ids_) return;
    step.ids = part_of(buffer<std::int32_t const>(ids_.get()), nth * sequences_, sequences_);
    step.id_rows = {};
  }

 private:
  D* device_;
  cache_shape shape_;
  std::int64_t sequences_;
  std::int64_t tokens_;
  bool with_queries_;
  bool with_ids_;
  layer_array<D, float> queries_;  ///< `[layers, tokens, sequences, q_heads, head_dim]`
  array_of<D, std::int32_t> ids_;  ///< `[tokens, sequences]`
};

}  // namespace kvpolicy::gpu::detail
