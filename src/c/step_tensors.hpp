// What kvpolicy_step() is given: one token's tensors of several sequences.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "kvpolicy/rows.hpp"
#include "kvpolicy/signals.hpp"
#include "kvpolicy/types.hpp"
#include "tensor.hpp"

namespace kvpolicy::c {

class step_tensors {
 public:
  /// Throws invalid_value for tensors that are not of `count` sequences of the shape.
  step_tensors(std::int64_t count, std::int64_t layer, cache_shape const& shape, kvpolicy_tensor const* keys,
               kvpolicy_tensor const* values, kvpolicy_tensor const* queries, float scale, kvpolicy_tensor const* token_ids,
               kvpolicy_tensor const* out)
      : layer_{layer}, shape_(shape), scale_(scale) {
    KVPOLICY_EXPECTS(layer >= 0 && layer < shape.layers,
                     "layer " + std::to_string(layer) + "; there are 0 to " + std::to_string(shape.layers - 1));
    KVPOLICY_EXPECTS(std::isfinite(scale), "scale is " + std::to_string(scale) + "; it must be a finite number");
    auto const of = [&](kvpolicy_tensor const* t, char const* name, kvpolicy_dtype dtype, std::int64_t heads, bool written) {
      return checked(t, {.name = name, .layer = layer, .dtype = dtype, .dense_last = true, .written = written},
                     {{"sequences", count}, {"heads", heads}, {"head_dim", shape.head_dim}});
    };
    keys_ = of(keys, "keys", dtype_of(shape.type), shape.kv_heads, false);
    values_ = of(values, "values", dtype_of(shape.type), shape.kv_heads, false);
    queries_ = of(queries, "queries", float32, shape.q_heads, false);
    out_ = of(out, "out", float32, shape.q_heads, true);
    KVPOLICY_EXPECTS(shape.q_heads == 1 || out_.stride[1] == shape.head_dim * 4,
                     "out of layer " + std::to_string(layer) + " is not dense: a sequence's heads must lie behind one another");
    if (token_ids != nullptr)
      ids_ = checked(token_ids, {.name = "token ids", .dtype = int32, .dense_last = true}, {{"sequences", count}});
  }

  /// Of sequence i; returns rows that it read.
  template <class Sequence>
  std::int64_t step(Sequence& sequence, std::int64_t i) const {
    query_heads const queries{reinterpret_cast<float const*>(queries_.data + i * queries_.stride[0]), shape_.q_heads,
                              queries_.stride[1] / 4, scale_};
    std::int32_t const id = ids_.data == nullptr ? -1 : reinterpret_cast<std::int32_t const*>(ids_.data)[i];
    return sequence.step(layer_, row_of(keys_, i), row_of(values_, i), queries, id,
                         reinterpret_cast<float*>(out_.data + i * out_.stride[0]));
  }

 private:
  rows row_of(tensor const& all, std::int64_t i) const noexcept {
    return {.base = all.data + i * all.stride[0],
            .type = shape_.type,
            .heads = shape_.kv_heads,
            .tokens = 1,
            .head_dim = shape_.head_dim,
            .head_stride = all.stride[1],
            .token_stride = all.stride[1] * shape_.kv_heads,
            .dim_stride = size_of(shape_.type)};
  }

  layer_id layer_;
  cache_shape shape_;
  float scale_;
  tensor keys_, values_, queries_, out_, ids_;
};

}  // namespace kvpolicy::c
