// What a decoder keeps of a step's tokens until it is known which of them stay.
#pragma once

#include "kvpolicy/gpu/decode/context.hpp"
#include "kvpolicy/gpu/kernel/keep_step.hpp"

namespace kvpolicy::gpu {

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
    if (with_ids_) step.ids = part_of(buffer<std::int32_t const>(ids_.get()), nth * sequences_, sequences_);
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

}  // namespace kvpolicy::gpu
