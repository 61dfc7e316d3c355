// Bounds of every unit of a batch, as they are kept between steps.
#pragma once

#include "kvpolicy/gpu/base/device.hpp"
#include "kvpolicy/gpu/pooling/pool.hpp"

namespace kvpolicy::gpu::detail {

/// Two vectors a unit of every layer, sequence and KV head, of the cache's type, as score_bounds reads them.
template <owning_device D>
class unit_bounds {
 public:
  unit_bounds(cache_shape const& shape, std::int64_t layers, std::int64_t sequences, std::int64_t units, D& device)
      : shape_(shape),
        sequences_(sequences),
        units_(units),
        all_(device.template allocate<pack>(divided_up(layers * layer_size() * size_of(shape.type), 16))) {}

  std::int64_t units() const noexcept { return units_; }
  /// As kernels write them, from a sequence on.
  batch_bounds to(layer_id layer, std::int64_t first_sequence = 0) const noexcept {
    std::int64_t const skipped = first_sequence * shape_.kv_heads * head_size();
    return {base(layer) + skipped * size_of(shape_.type), layer_size() - skipped, shape_.kv_heads * head_size(), head_size()};
  }
  /// As they are read: of unit u, rows 2u and 2u + 1.
  batch_rows rows(layer_id layer) const noexcept {
    batch_rows made{};
    made.base = base(layer);
    made.elements = layer_size();
    made.type = shape_.type;
    made.heads = static_cast<std::int32_t>(shape_.kv_heads);
    made.head_dim = static_cast<std::int32_t>(shape_.head_dim);
    made.sequence_stride = shape_.kv_heads * head_size();
    made.head_stride = head_size();
    made.token_stride = shape_.head_dim;
    return finished(made);
  }

 private:
  std::byte* base(layer_id layer) const noexcept {
    return reinterpret_cast<std::byte*>(all_.get().data) + layer.value * layer_size() * size_of(shape_.type);
  }
  std::int64_t head_size() const noexcept { return units_ * 2 * shape_.head_dim; }
  /// A multiple of 8, so that every layer's rows are aligned.
  std::int64_t layer_size() const noexcept { return divided_up(sequences_ * shape_.kv_heads * head_size(), 8) * 8; }

  cache_shape shape_;
  std::int64_t sequences_;
  std::int64_t units_;
  array_of<D, pack> all_;  ///< `[layers, sequences, kv_heads, units, 2, head_dim]`
};

}  // namespace kvpolicy::gpu::detail
