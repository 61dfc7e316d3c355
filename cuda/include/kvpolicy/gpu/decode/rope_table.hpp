// A model's rotary embedding on the device, for decoders that compare pre-rope keys.
#pragma once

#include "kvpolicy/detail/rope_table.hpp"
#include "kvpolicy/gpu/decode/context.hpp"
#include "kvpolicy/gpu/kernel/rope_table.hpp"

namespace kvpolicy::gpu {

template <owning_device D>
class device_rope_table {
 public:
  device_rope_table(cache_shape const& shape, bool wanted, D& device)
      : angles_(device.template allocate<float>(wanted ? shape.max_tokens * shape.head_dim : 1)) {
    host_.reserve(shape, wanted);
  }

  /// What a prompt tells; uploads the angles of all tokens that there can be where they are others than before.
  void take(rotation const& rope, D& device) {
    if (host_.take(rope)) device.upload(angles_.get(), host_.angles.data(), std::ssize(host_.angles));
  }

  batch_rope_angles get() const noexcept {
    rope_angles const rope = host_.get();
    if (rope.angles == nullptr) return {};
    return {angles_.get(), static_cast<std::int32_t>(rope.pairs), rope.how == rotation::pairing::halves};
  }

 private:
  rope_table host_;
  array_of<D, float> angles_;  ///< `[max_tokens, 2, pairs]`
};

}  // namespace kvpolicy::gpu
